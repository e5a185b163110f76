"""Custom health checks: functions of a project that workers call periodically and that report problems."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar

from sqlqueue_app.messages.errors import ConfigurationError, dotted_path

CheckFunction = Callable[[], Any]
_Function = TypeVar("_Function", bound=CheckFunction)

# Prefix of the built-in checks.
OWN_PREFIX: Final = "sqlqueue."
MAX_NAME_LENGTH: Final = 100
MIN_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """A registered check: its name, unique among the projects of a database, and its interval."""

    name: str
    every_seconds: float
    function: CheckFunction

    @property
    def path(self) -> str:
        """The dotted path of the function, for errors and logs."""
        return dotted_path(self.function)


class CheckRegistry:
    """The checks of this process by name. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._checks: dict[str, HealthCheck] = {}

    def add(self, check: HealthCheck) -> None:
        """Register a check; the same function may be registered again. ConfigurationError if another one has the name."""
        with self._lock:
            known = self._checks.get(check.name)
            if known is not None and known.path != check.path:
                raise ConfigurationError(
                    f"two checks are called {check.name!r}: {known.path} and {check.path}; give one of them another name"
                )
            self._checks[check.name] = check

    def remove(self, name: str) -> None:
        """Unregister, for tests."""
        with self._lock:
            self._checks.pop(name, None)

    def all(self) -> list[HealthCheck]:
        """All checks in the order of registration."""
        with self._lock:
            return list(self._checks.values())


registry: Final = CheckRegistry()


def health_check(name: str, *, every: float | timedelta = 60.0) -> Callable[[_Function], _Function]:
    """Register a function without arguments as a check. It returns None or "" if all is well, otherwise a description of the
    problem.

    One worker of the cluster calls it at this interval (at least 10 seconds) in a background thread. An exception is a failure with
    its text. The function must return: use timeouts. It can still be called directly. ConfigurationError for an async function, for
    required arguments, and for an invalid name or interval.
    """
    _check_name(name)
    seconds = _seconds_of(name, every)

    def register(function: _Function) -> _Function:
        _check_function(name, function)
        registry.add(HealthCheck(name, seconds, function))
        return function

    return register


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name.strip():
        raise ConfigurationError(f"the check name {name!r} is invalid: expected text, as in @health_check('payment gateway')")
    if len(name) > MAX_NAME_LENGTH or not name.isprintable():
        raise ConfigurationError(f"the check name {name!r} is invalid: expected at most {MAX_NAME_LENGTH} printable characters")
    if name.startswith(OWN_PREFIX):
        raise ConfigurationError(
            f"the check name {name!r} is invalid: names that begin with {OWN_PREFIX!r} are reserved for sqlqueue"
        )


def _seconds_of(name: str, every: object) -> float:
    seconds = every.total_seconds() if isinstance(every, timedelta) else every
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not MIN_SECONDS <= seconds < 10**8:
        raise ConfigurationError(f"check {name!r} cannot run every {every!r}: expected {MIN_SECONDS:g} seconds or more")
    return float(seconds)


def _check_function(name: str, function: Any) -> None:
    if not callable(function):
        raise ConfigurationError(f"check {name!r} decorates {function!r}: expected a function without arguments")
    call = function if inspect.isroutine(function) else type(function).__call__
    if inspect.iscoroutinefunction(call) or inspect.isasyncgenfunction(call) or inspect.isgeneratorfunction(call):
        raise ConfigurationError(
            f"check {name!r} ({dotted_path(function)}) is async or a generator: a thread of the worker calls it, where no event "
            "loop runs; write a plain function, and call async code in it with asgiref's async_to_sync"
        )
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise ConfigurationError(f"check {name!r} ({dotted_path(function)}) must be callable without arguments: {error}") from error
