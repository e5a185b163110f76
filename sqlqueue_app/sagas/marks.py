"""The decorators of a saga's methods: which messages start it, which continue it, and which of its timeouts they handle."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar

from sqlqueue_app.messages.errors import HandlerError
from sqlqueue_app.messages.types import plain_name
from sqlqueue_app.policies.recoverability import Retry
from sqlqueue_app.receiving.handlers import named_type, time_limits

_Method = TypeVar("_Method", bound=Callable[..., Any])

Correlate = Callable[[Any], Any]

_MARKS: Final = "sqlqueue_saga_marks"


class Role(enum.Enum):
    """The role of a message in a saga; the value is the name of the decorator, and the word in the history."""

    STARTS = "starts"
    CONTINUES = "continues"
    TIMEOUT = "on_timeout"


@dataclass(frozen=True, slots=True)
class SagaMark:
    """One message type of one method."""

    role: Role
    message_type: str
    target: type | None
    correlate: Correlate | None = None
    retry: Retry | None = None
    soft_time_limit: float | None = None
    hard_time_limit: float | None = None


def starts(
    *messages: type | str,
    correlate: Correlate | None = None,
    retry: Retry | None = None,
    soft_time_limit: float | timedelta | None = None,
    hard_time_limit: float | timedelta | None = None,
) -> Callable[[_Method], _Method]:
    """Mark a method `f(self, message, context)` of a `Saga`: it handles these messages, which start a saga unless one runs.

    `correlate` returns the value of the correlation field for a message; by default it is the member of the same name. The other
    options are those of `handles()`. Raises HandlerError as that does.
    """
    return _mark(Role.STARTS, messages, correlate, retry, soft_time_limit, hard_time_limit)


def continues(
    *messages: type | str,
    correlate: Correlate | None = None,
    retry: Retry | None = None,
    soft_time_limit: float | timedelta | None = None,
    hard_time_limit: float | timedelta | None = None,
) -> Callable[[_Method], _Method]:
    """Mark a method as `starts` does; without a running saga its messages go to `Saga.not_found()`.

    A reply to a message of the saga finds it by its headers, so it needs no member for the correlation.
    """
    return _mark(Role.CONTINUES, messages, correlate, retry, soft_time_limit, hard_time_limit)


def on_timeout(
    *messages: type | str,
    retry: Retry | None = None,
    soft_time_limit: float | timedelta | None = None,
    hard_time_limit: float | timedelta | None = None,
) -> Callable[[_Method], _Method]:
    """Mark a method as `starts` does, for messages that the saga has requested with `request_timeout()`."""
    return _mark(Role.TIMEOUT, messages, None, retry, soft_time_limit, hard_time_limit)


def _mark(
    role: Role,
    messages: tuple[type | str, ...],
    correlate: Correlate | None,
    retry: Retry | None,
    soft_time_limit: float | timedelta | None,
    hard_time_limit: float | timedelta | None,
) -> Callable[[_Method], _Method]:
    where = f"@{role.value}"
    if not messages:
        raise HandlerError(f"{where}() names no message type: expected a class or a type name, as in {where}('Sales.PlaceOrder')")
    if inspect.iscoroutinefunction(correlate) or (correlate is not None and not callable(correlate)):
        raise HandlerError(f"{where}(…, correlate={correlate!r}): expected a function, as in correlate=lambda message: message.id")
    if retry is not None and not isinstance(retry, Retry):
        raise HandlerError(f"{where}(…, retry={retry!r}): expected a Retry, as in retry=Retry(delays=[10, 60])")
    soft, hard = time_limits(soft_time_limit, hard_time_limit, where=where)
    marks = [SagaMark(role, *named_type(message, where=where), correlate, retry, soft, hard) for message in messages]

    def mark(method: _Method) -> _Method:
        _check_method(method, where)
        method.__dict__.setdefault(_MARKS, []).extend(marks)
        return method

    return mark


def _check_method(method: Any, where: str) -> None:
    name = getattr(method, "__qualname__", repr(method))
    if not inspect.isfunction(method):
        raise HandlerError(f"{where} decorates {name}: expected a method of a Saga that takes (self, message, context)")
    if inspect.isasyncgenfunction(method) or inspect.isgeneratorfunction(method):
        raise HandlerError(f"{where} decorates {name}, which is a generator, whose body would not run: write it without yield")
    try:
        inspect.signature(method).bind(None, None, None)
    except TypeError as error:
        raise HandlerError(f"{name} must take (self, message, context): {error}") from error


def marked_methods(saga: type) -> dict[str, tuple[Callable[..., Any], list[SagaMark]]]:
    """The marked methods of a class and of its bases, by name, with their marks. HandlerError if two take one message."""
    found: dict[str, tuple[Callable[..., Any], list[SagaMark]]] = {}
    for base in reversed(saga.__mro__):
        for name, method in vars(base).items():
            if inspect.isfunction(method) and (marks := getattr(method, _MARKS, None)):
                found[name] = method, marks
            else:
                # A method that replaces a marked one handles nothing unless it is marked again.
                found.pop(name, None)
    known: dict[tuple[str, bool], str] = {}
    for name, (_, marks) in found.items():
        for mark in marks:
            key = plain_name(mark.message_type), mark.role is Role.TIMEOUT
            if (first := known.get(key)) == name:
                twice = f"{saga.__qualname__}.{name} names {mark.message_type!r} twice"
                raise HandlerError(f"{twice}: keep one; @starts also continues")
            if first is not None:
                both = f"{first} and {name}"
                raise HandlerError(f"{saga.__qualname__} has two methods for {mark.message_type!r}, {both}: keep one")
            known[key] = name
    return found
