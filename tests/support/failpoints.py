"""Points of the product's way at which a test makes something happen: around the product's own methods, in processes of tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import ModuleType
from typing import Any


def trap(owner: type | ModuleType, name: str, then: Callable[[], None], *, before: bool = False, if_found: bool = False) -> None:
    """Call `then` around each call of a method or function: not after one that raised, nor with `if_found` one without result."""
    method: Callable[..., Any] = getattr(owner, name)

    def trapped(*args: Any, **more: Any) -> Any:
        if before:
            then()
        result = method(*args, **more)
        if not before and (result or not if_found):
            then()
        return result

    setattr(owner, name, trapped)


def die() -> None:
    """`kill -9` of this very process."""
    os.kill(os.getpid(), signal.SIGKILL)
