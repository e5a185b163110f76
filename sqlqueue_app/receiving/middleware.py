"""Middleware: callables of the project around each handler, composed once for each handler when the endpoint is built.

The shape is that of Django's: `def middleware(call)` returns `def handle(message, context)`, which does its part and returns
`call(message, context)`. Without middleware a handler is called directly.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from sqlqueue_app.conf.callables import load_callable
from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.receiving.calling import refuse_unrun
from sqlqueue_app.receiving.handlers import Handler, HandlerFunction

Middleware = Callable[[HandlerFunction], HandlerFunction]


def load_middleware(entries: Sequence[str | Callable[..., object]], *, setting: str) -> list[Middleware]:
    """The callables of the setting, outermost first; ConfigurationError that names the setting for one that cannot be used."""
    loaded: list[Middleware] = []
    for place, entry in enumerate(entries):
        where = f"{setting}[{place}]"
        found = load_callable(entry, setting=where)
        try:
            inspect.signature(found).bind(None)
        except TypeError as error:
            raise ConfigurationError(f"{where} is {_shown(found)}, which must take (call): {error}; {_EXPECTED}") from error
        except ValueError:
            pass  # written in C: no signature to look at
        loaded.append(found)
    return loaded


def around(handlers: Iterable[Handler], middleware: Sequence[Middleware], *, setting: str) -> list[Handler]:
    """The handlers with the middleware around them, outermost first; ConfigurationError if one does not make a function.

    Each middleware is called once for each handler, here.
    """
    if not middleware:
        return list(handlers)
    return [replace(handler, call=_composed(handler, middleware, setting)) for handler in handlers]


_EXPECTED = "expected `def middleware(call)` that returns `def handle(message, context)`"


def _composed(handler: Handler, middleware: Sequence[Middleware], setting: str) -> HandlerFunction:
    call = _checked(handler)
    for place in reversed(range(len(middleware))):
        made: Any = middleware[place](call)
        what = f"{setting}[{place}] is {_shown(middleware[place])}, which returned {made!r}"
        if inspect.iscoroutine(made):
            made.close()
        if not callable(made):
            raise ConfigurationError(f"{what}; {_EXPECTED}")
        if inspect.iscoroutinefunction(made):
            raise ConfigurationError(f"{what}, which is async: it could not share the receive transaction; {_EXPECTED}")
        call = made
    return call


def _checked(handler: Handler) -> HandlerFunction:
    """What the handler returns is looked at here, since middleware may return something else."""

    def call(message: Any, context: Any) -> Any:
        result = handler.function(message, context)
        if result is not None:
            refuse_unrun(result, handler)
        return result

    return call


def _shown(found: object) -> str:
    return f"{getattr(found, '__module__', '?')}.{getattr(found, '__qualname__', None) or type(found).__qualname__}"
