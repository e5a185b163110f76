"""Functions that settings name by their dotted path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.utils.module_loading import import_string

from sqlqueue_app.messages.errors import ConfigurationError


def load_callable(found: str | Callable[..., Any], *, setting: str) -> Callable[..., Any]:
    """The callable of a dotted path, or the callable itself; ConfigurationError that names the setting if there is none."""
    if callable(found):
        return found
    try:
        loaded = import_string(found)
    except ImportError as error:
        raise ConfigurationError(f"{setting} names {found!r}, which cannot be imported: {error}") from error
    if not callable(loaded):
        raise ConfigurationError(f"{setting} names {found!r}, which is {type(loaded).__name__}: expected a function")
    return loaded  # type: ignore[no-any-return]
