"""Several messages in one body: the children of a root `Messages`, as cores 3 and 4 wrote what was sent together (reference 6.5).

Each is a message of its own type for its own handlers. They are handled in their order, in the one transaction of their row: where
one fails, none is handled, and the row is tried again as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from sqlqueue_app.messages.errors import MessageTypeError
from sqlqueue_app.messages.types import enclosed_types, find_message_type, resolve_enclosed
from sqlqueue_app.messages.xml_document import Element
from sqlqueue_app.receiving.context import MessageContext
from sqlqueue_app.receiving.handlers import Handler

_BEFORE_NAME: Final = re.compile(r".*[.+]", re.DOTALL)


def types_of(element: Element, enclosed: Sequence[str]) -> list[str]:
    """The names of the type of one message, the concrete one first, then its bases; `enclosed` are those of all the messages.

    With enclosed types it is one of them, and so are its bases: those that its element declares, and those of its class. Without,
    the element says all. MessageTypeError for an element that is none of the enclosed types, or could be two of them.
    """
    if not enclosed:
        return _with_bases(element.type_names, element)
    own = [name for name in element.type_names[:1] if name in enclosed]
    own = own or [name for name in dict.fromkeys(enclosed) if _may_be(element, name)]
    if len(own) != 1:
        what = "is none of" if not own else "could be several of"
        raise MessageTypeError(
            f"the body holds a message {element.name!r} of the namespace {element.namespace!r}, which {what} "
            f"the types in the header NServiceBus.EnclosedMessageTypes: {', '.join(map(repr, enclosed))}"
        )
    return [name for name in _with_bases(own, element) if name in enclosed]


def bound_to(handler: Handler, types: list[str]) -> Handler:
    """The handler for one of several messages: while it runs, the context says the types of that message."""
    call = handler.call or handler.function

    def run(message: Any, context: MessageContext) -> Any:
        context.types_at_hand = types
        return call(message, context)

    return replace(handler, call=run)


def _may_be(element: Element, name: str) -> bool:
    """Whether an enclosed type has the name of the element, and its namespace if it has one; a class may be inside of another."""
    if name == element.name:
        return True
    space = element.namespace.rpartition("/")[2]
    return _BEFORE_NAME.sub("", name) == element.name and (not space or name.startswith((f"{space}.", f"{space}+")))


def _with_bases(names: Sequence[str], element: Element) -> list[str]:
    found = [*names, *element.base_types]
    for name in names:
        if (known := find_message_type(name)) is not None:
            found += resolve_enclosed(enclosed_types(known.cls))
    return list(dict.fromkeys(found))
