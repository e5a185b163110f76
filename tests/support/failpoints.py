"""Points in the product at which a test triggers an action, by wrapping the product's own methods in test processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import ModuleType
from typing import Any


def trap(owner: type | ModuleType, name: str, then: Callable[[], None], *, before: bool = False, if_found: bool = False) -> None:
    """Call `then` after each call of a method or function, or `before` it.

    Not after a call that raised, nor, with `if_found`, after one without a result.
    """
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
    """`kill -9` this process."""
    os.kill(os.getpid(), signal.SIGKILL)
