"""Handlers: which functions are called for which message type, found in modules named `handlers` or named by the settings."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

from django.utils.module_loading import autodiscover_modules

from sqlqueue_app.messages.errors import ConfigurationError, HandlerError
from sqlqueue_app.messages.types import message_type_name

HandlerFunction = Callable[[Any, Any], Any]
_Handler = TypeVar("_Handler", bound=HandlerFunction)


@dataclass(frozen=True, slots=True)
class Handler:
    """A registered function. `target` is the class of its messages, or None where the body arrives as a dict.

    `call` is what is called for a message, if not the function itself: the function with middleware around it.
    `registered_at` is the module and line that registered it, which need not be those of the function.
    """

    message_type: str
    function: HandlerFunction
    target: type | None
    call: HandlerFunction | None = None
    registered_at: tuple[str, int] = ("", 0)

    @property
    def path(self) -> str:
        """The dotted path of the function, for logs and errors."""
        return _path(self.function)

    def belongs_to(self, modules: Iterable[str]) -> bool:
        """Whether the function was defined, or registered, in one of the modules or below them."""
        own = (getattr(self.function, "__module__", "") or "", self.registered_at[0])
        return any(module == name or module.startswith(f"{name}.") for name in modules for module in own)


class HandlerRegistry:
    """Handlers by message type, in the order of their registration. Registering and reading are safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handlers: dict[tuple[str, str, tuple[str, int]], Handler] = {}

    def add(self, handler: Handler) -> None:
        """Register; the same function for the same type again, or its successor (a module imported twice), takes its own place.

        Functions of one path are different ones where they were registered at different places: lambdas, what a factory makes.
        """
        with self._lock:
            self._handlers[self._key(handler)] = handler

    def _key(self, handler: Handler) -> tuple[str, str, tuple[str, int]]:
        for key, known in self._handlers.items():
            if known.function is handler.function and known.message_type == handler.message_type:
                return key
        return handler.message_type, handler.path, handler.registered_at

    def remove(self, handler: Handler) -> None:
        """Take a registration back, for tests."""
        with self._lock:
            self._handlers.pop(self._key(handler), None)

    def all(self) -> list[Handler]:
        """Every handler, in the order of registration."""
        with self._lock:
            return list(self._handlers.values())


registry = HandlerRegistry()


def handles(*messages: type | str) -> Callable[[_Handler], _Handler]:
    """Register a handler `f(message, context)` for classes of a `message_type`, or for type names whose bodies arrive as dicts.

    The handler runs inside the receive transaction; what it does on the queue's database commits or rolls back with the receive.
    HandlerError for an `async def` function, which could not share that transaction, for one that does not take two positional
    arguments, and for a class that is no message type.
    """
    if not messages:
        raise HandlerError(
            "@handles() names no message type: expected a message class or a type name, as in @handles('Sales.PlaceOrder')"
        )

    def register(function: _Handler) -> _Handler:
        _check(function)
        caller = sys._getframe(1)
        place = (str(caller.f_globals.get("__name__", "")), caller.f_lineno)
        for message in messages:
            if isinstance(message, str):
                name, target = message.strip(), None
                if not name:
                    raise HandlerError(f"@handles({message!r}) on {_path(function)}: expected a message type name")
            else:
                name, target = message_type_name(message), message
            registry.add(Handler(name, function, target, registered_at=place))
        return function

    return register


def handlers_of(modules: Iterable[str] | None) -> list[Handler]:
    """Import what the settings name (None: `handlers` of every installed app) and return the handlers that an endpoint calls.

    ConfigurationError if a module cannot be imported.
    """
    if modules is None:
        autodiscover_modules("handlers")
        return registry.all()
    names = list(modules)
    for name in names:
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
                raise ConfigurationError(
                    f"HANDLERS names the module {name!r}, which does not exist: write the dotted path of a Python module"
                ) from error
            raise
    return [handler for handler in registry.all() if handler.belongs_to(names)]


def _check(function: Any) -> None:
    if not callable(function):
        raise HandlerError(f"@handles decorates {function!r}: expected a function that takes (message, context)")
    call = function if inspect.isroutine(function) else type(function).__call__
    if inspect.iscoroutinefunction(call) or inspect.isasyncgenfunction(call):
        raise HandlerError(
            f"handler {_path(function)} is async: it could not share the receive transaction, which belongs to one thread; "
            "write a plain function, and call async code in it with asgiref's async_to_sync"
        )
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as error:
        raise HandlerError(f"handler {_path(function)} must take (message, context): {error}") from error


def _path(function: Any) -> str:
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{getattr(function, '__module__', '?')}.{name}"
