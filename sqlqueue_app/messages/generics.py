"""The type hints of a class, with what its type variables stand for: `value: T` of `Page[Line]` is a Line."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from typing import Any

_Bound = dict[Any, Any]


def bound_hints(kind: Any) -> dict[str, Any]:
    """The hints of a class, or of an alias such as `Page[Line]`, by name, extras included.

    A variable that nothing binds stays as it is. Raises what `typing.get_type_hints` raises.
    """
    cls = typing.get_origin(kind) or kind
    hints = typing.get_type_hints(cls, include_extras=True)
    bindings = list(_bindings(cls, typing.get_args(kind)))
    if not any(bound for _, bound in bindings):
        return hints
    if typing.is_typeddict(cls):  # it has no bases at run time
        bound = {variable: value for _, each in bindings for variable, value in each.items()}
        return {name: _substituted(hint, bound) for name, hint in hints.items()}
    found = dict(hints)
    for base in reversed(cls.__mro__):
        bound = {variable: value for owner, each in bindings if owner is base for variable, value in each.items()}
        found.update({name: _substituted(hints[name], bound) for name in inspect.get_annotations(base) if name in hints})
    return found


def _bindings(cls: Any, args: tuple[Any, ...]) -> Iterator[tuple[Any, _Bound]]:
    """The class and its bases, each with what stands for its variables."""
    bound = dict(zip(getattr(cls, "__parameters__", ()), args, strict=False))
    yield cls, bound
    for base in getattr(cls, "__orig_bases__", getattr(cls, "__bases__", ())):
        origin = typing.get_origin(base)
        if origin in (typing.Generic, typing.Protocol):
            continue
        yield from _bindings(origin or base, tuple(_substituted(arg, bound) for arg in typing.get_args(base)))


def _substituted(hint: Any, bound: _Bound) -> Any:
    if isinstance(hint, typing.TypeVar):
        return bound.get(hint, hint)
    variables = getattr(hint, "__parameters__", ())
    if not bound or not variables or isinstance(hint, type):
        return hint
    return hint[tuple(bound.get(variable, variable) for variable in variables)]
