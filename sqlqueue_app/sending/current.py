"""The message that the calling thread handles, so that a plain `send()` inside of a handler continues its conversation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass

from sqlqueue_app.messages.envelope import IncomingMessage, OutgoingMessage

Collect = Callable[[Sequence[OutgoingMessage]], None]


# Not frozen, which would double what one costs: there is one for each message. Nobody changes it.
@dataclass(slots=True, eq=False)
class Handling:
    """What is handled, and by which endpoint."""

    incoming: IncomingMessage
    endpoint: str
    collect: Collect | None = None
    """Where a plain `send()` leaves its messages, in modes in which they must not join the receive transaction."""


_handling: ContextVar[Handling | None] = ContextVar("sqlqueue_handling", default=None)


def current_handling() -> Handling | None:
    """What the calling thread handles, or None outside of a handler."""
    return _handling.get()


class handling:  # noqa: N801 - a context manager, named as what one says with it
    """Mark the message as handled by this thread while the context is open."""

    __slots__ = ("_handled", "_token")

    def __init__(self, handled: Handling) -> None:
        self._handled = handled

    def __enter__(self) -> None:
        self._token: Token[Handling | None] = _handling.set(self._handled)

    def __exit__(self, *exception: object) -> None:
        _handling.reset(self._token)
