"""How often a body may fail to fit one of several alternatives, so that nobody can have a reader try for ever.

Hints such as `Node | Leaf` are tried one after the other. Where they hold such hints themselves, a short body that fits none
could be tried as often as there are ways through it: twice as often with each level.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from sqlqueue_app.messages.errors import MessageBodyError

LEAST_TRIES: Final = 10_000
_LEFT: Final[ContextVar[list[int] | None]] = ContextVar("tries_left", default=None)


@contextmanager
def limited_tries(size: int) -> Iterator[None]:
    """While open, so many alternatives may fail as a body of `size` bytes could have values, LEAST_TRIES at least.

    Inside of another one, that one counts: several messages of one body share its tries.
    """
    if _LEFT.get() is not None:
        yield
        return
    token = _LEFT.set([max(LEAST_TRIES, size)])
    try:
        yield
    finally:
        _LEFT.reset(token)


def count_failed_try() -> None:
    """One alternative did not fit. MessageBodyError if that were too many."""
    left = _LEFT.get()
    if left is None:
        return
    left[0] -= 1
    if left[0] < 0:
        raise MessageBodyError(
            "the body fits too many alternatives of its type hints in part and none of them whole: reading it was given up; "
            "have the alternatives differ where they begin, or send a body that fits one of them"
        )
