"""Type hints without what surrounds them, for readers and writers of bodies."""

from __future__ import annotations

import collections.abc
import types
import typing
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final
from uuid import UUID

ARRAYS: Final = (
    list, tuple, set, frozenset, collections.abc.Sequence, collections.abc.MutableSequence, collections.abc.Collection,
    collections.abc.Iterable, collections.abc.Set, collections.abc.MutableSet,
)  # fmt: skip
# What is a value, not a reference, in .NET.
_VALUES: Final = (bool, int, float, Decimal, datetime, date, time, timedelta, UUID)
MAPPINGS: Final = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


_AROUND: Final = (typing.Annotated, typing.Required, typing.NotRequired, getattr(typing, "ReadOnly", typing.Required))


def bare(hint: Any) -> Any:
    """The hint without Annotated, NewType, type aliases and what marks keys of a TypedDict."""
    while True:
        if typing.get_origin(hint) in _AROUND:
            hint = typing.get_args(hint)[0]
        elif isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        elif type(hint).__name__ == "TypeAliasType":  # `type X = ...` of 3.12
            hint = hint.__value__
        else:
            return hint


def alternatives(hint: Any) -> tuple[Any, ...]:
    """What a union is made of, bare, without None; of another hint itself."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return tuple(bare(arg) for arg in typing.get_args(hint) if arg is not type(None))
    return (hint,)


def is_optional(hint: Any) -> bool:
    """Whether the hint is a union with None."""
    return typing.get_origin(hint) in (typing.Union, types.UnionType) and type(None) in typing.get_args(hint)


def is_value_type(kind: Any) -> bool:
    """Whether .NET has a value for a bare hint, not a reference that may be null."""
    return isinstance(kind, type) and (kind in _VALUES or issubclass(kind, Enum))


def array_items(hint: Any) -> list[Any] | None:
    """The hints of the items of a list, set or tuple: the last one stands for all that follow; None for another hint."""
    origin = typing.get_origin(hint) or hint
    if origin not in ARRAYS:
        return None
    args = [arg for arg in typing.get_args(hint) if arg is not Ellipsis]
    return args or [Any]


def mapping_items(hint: Any) -> tuple[Any, Any] | None:
    """The hints of keys and values of a mapping with declared types; None for another hint, also for a dict without them."""
    args = typing.get_args(hint)
    return (args[0], args[1]) if typing.get_origin(hint) in MAPPINGS and len(args) == 2 else None
