"""Names of members in dictionaries whose type is known: a TypedDict has members, a plain dict has data."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any

from sqlqueue_app.messages.errors import MessageBodyError
from sqlqueue_app.messages.hints import alternatives, array_items, bare, mapping_items
from sqlqueue_app.messages.shapes import members_of, pascal


def pascal_keys(value: Any, hint: Any) -> Any:
    """The value with the keys of TypedDicts as .NET spells them, as far as the hint knows them; others stay.

    MessageBodyError where two keys would become one.
    """
    for kind in alternatives(bare(hint)):
        if isinstance(value, Mapping):
            if typing.is_typeddict(typing.get_origin(kind) or kind):
                return _members(value, {member.name: member.hint for member in members_of(kind)})
            if (pair := mapping_items(kind)) is not None:
                return {key: pascal_keys(item, pair[1]) for key, item in value.items()}
        elif isinstance(value, (list, tuple)) and (items := array_items(kind)) is not None:
            return [pascal_keys(item, items[min(index, len(items) - 1)]) for index, item in enumerate(value)]
    return value


def _members(value: Mapping[Any, Any], hints: dict[str, Any]) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for key, item in value.items():
        name = pascal(key) if key in hints else key
        if name in found:
            raise MessageBodyError(f"two members would both be written as {name!r}; rename one of them")
        found[name] = pascal_keys(item, hints.get(key, Any))
    return found
