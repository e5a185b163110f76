"""Points of the product's way at which a test makes something happen: around the product's own methods, in processes of tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any


def trap(owner: type, name: str, then: Callable[[], None], *, before: bool = False, if_found: bool = False) -> None:
    """Call `then` before or after each call of a method: not after one that raised, nor with `if_found` one without result."""
    method: Callable[..., Any] = getattr(owner, name)

    def trapped(self: Any, *args: Any, **more: Any) -> Any:
        if before:
            then()
        result = method(self, *args, **more)
        if not before and (result or not if_found):
            then()
        return result

    setattr(owner, name, trapped)


def die() -> None:
    """`kill -9` of this very process."""
    os.kill(os.getpid(), signal.SIGKILL)
