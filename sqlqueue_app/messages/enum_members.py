"""Which member of an Enum a value of a body stands for: its value, its name, or the names of flags."""

from __future__ import annotations

import functools
import operator
import re
from enum import Enum, Flag
from typing import Any, Final

from sqlqueue_app.messages.shapes import folded

_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,40}")


def find_member(cls: type[Enum], value: Any) -> Enum | None:
    """By value, then by name in any case: .NET's JSON writes numbers, its XML and many peers names; None if there is none.

    Text may also be a number, as it is in the keys of a dictionary, or the names of flags with commas between, as .NET has them.
    """
    found = _of_value(cls, value)
    if found is not None or not isinstance(value, str):
        return found
    text = value.strip()
    found = _of_name(cls, text)
    if found is None and _NUMBER.fullmatch(text):
        found = _of_value(cls, int(text))
    if found is None and "," in text and issubclass(cls, Flag):
        members = [member for name in text.split(",") if isinstance(member := _of_name(cls, name.strip()), Flag)]
        found = functools.reduce(operator.or_, members) if len(members) == text.count(",") + 1 else None
    return found


def _of_value(cls: type[Enum], value: Any) -> Enum | None:
    if value is None or type(value) is bool:
        return None
    try:
        return cls(value)
    except (ValueError, TypeError):  # TypeError: text for a flag, of which Python makes no value
        return None


def _of_name(cls: type[Enum], name: str) -> Enum | None:
    members = cls.__members__
    if (exact := members.get(name)) is not None:
        return exact
    wanted = folded(name)
    return next((member for known, member in members.items() if folded(known) == wanted), None)
