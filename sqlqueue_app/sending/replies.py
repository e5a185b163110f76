"""What a reply says: a return code, or an object (transport reference 6.9 and 18); and how a return code is written."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any, Final

from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.envelope import IncomingMessage, Intent
from sqlqueue_app.messages.errors import MessageTypeError, WireFormatError
from sqlqueue_app.messages.serializers import deserialize
from sqlqueue_app.messages.shapes import check_mappable
from sqlqueue_app.messages.types import find_message_type

NO_CODE: Final = -(2**31)
"""The code of a reply with neither a code nor a body, as core 5 reads it."""

_INT32: Final = range(-(2**31), 2**31)
# From core 5 on a reply says that it is one.
_FIRST_WITH_INTENT: Final = 5


def is_reply(incoming: IncomingMessage) -> bool:
    """Whether the message answers another one: by its intent; from cores before 5, by a correlation id that is not its own."""
    if incoming.intent is Intent.REPLY:
        return True
    major = (incoming.headers.get(names.VERSION) or "").partition(".")[0]
    is_old = major.isdecimal() and int(major) < _FIRST_WITH_INTENT
    return is_old and incoming.correlation_id not in (None, incoming.message_id)


def check_returns(returns: object) -> None:
    """MessageTypeError for what no reply could become: expected is int, an Enum, dict, or a class of messages."""
    if returns is None or returns in (int, dict) or (isinstance(returns, type) and issubclass(returns, enum.Enum)):
        return
    if not isinstance(returns, type):
        raise MessageTypeError(f"returns={returns!r} is no class; expected int, an Enum, dict, or a class of messages")
    try:
        check_mappable(returns)
    except MessageTypeError as error:
        raise MessageTypeError(f"returns={returns.__qualname__}: {error}") from None


def read_reply(incoming: IncomingMessage, returns: type | None, spelling: Callable[[str], str], serializer: str = "json") -> Any:
    """The reply as `returns`; without it an int for a return code, else an object of the message type, else a dict.

    `spelling` says how the members of a type are written, `serializer` how the body of an unknown content type is. A code that is a
    name is found in an Enum by its name, upper or lower case and with or without underscores; without an Enum it is text.
    WireFormatError, MessageBodyError for what does not fit.
    """
    code = incoming.headers.get(names.RETURN_MESSAGE_ERROR_CODE)
    wants_code = returns is not None and (returns is int or issubclass(returns, enum.Enum))
    if code is not None or not incoming.body:
        if returns is not None and not wants_code:
            raise WireFormatError(f"the reply is the return code {code!r}; expected an object, for returns={returns.__qualname__}")
        return _code(NO_CODE if code is None else _number(code), returns)
    types = incoming.message_types
    if wants_code and returns is not None:
        what = ", ".join(types) or "an object without a type"
        raise WireFormatError(f"the reply is {what}; expected a return code, for returns={returns.__qualname__}")
    known = next((found for name in types if (found := find_message_type(name)) is not None), None)
    target = returns or (known.cls if known is not None else None)
    return deserialize(incoming.body, incoming.content_type, target, spelling(known.name if known else ""), serializer)


def _number(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:
        return text.strip()


def _code(code: int | str, returns: type | None) -> Any:
    if returns is None:
        return code
    if returns is int:
        if isinstance(code, int):
            return code
        raise WireFormatError(f"the return code is {code!r}; expected a number, for returns=int: name the Enum instead")
    members: Mapping[str, enum.Enum] = returns.__members__  # type: ignore[attr-defined]
    if isinstance(code, int):
        found = next((member for member in members.values() if member.value == code), None)
    else:
        found = members.get(code) or next((member for name, member in members.items() if _folded(name) == _folded(code)), None)
    if found is None:
        known = ", ".join(f"{name} = {member.value!r}" for name, member in members.items())
        raise WireFormatError(f"the return code is {code!r}; expected one of {returns.__qualname__}: {known}")
    return found


def _folded(name: str) -> str:
    return name.replace("_", "").casefold()


def return_code_of(message: object, body: object = None) -> int | None:
    """The code that `context.reply()` was given instead of a message: an int, or an Enum whose value is one; None for a message.

    MessageTypeError for a bool, an Enum of another kind, a body beside the code; WireFormatError for a number above 32 bits.
    """
    if not isinstance(message, (int, enum.Enum)):
        return None
    value: object = message.value if isinstance(message, enum.Enum) else message
    if isinstance(value, bool) or not isinstance(value, int):
        raise MessageTypeError(f"a return code is an integer, or an Enum whose values are integers; got {message!r}")
    if body is not None:
        raise MessageTypeError(f"a body was given beside the return code {message!r}: a return code has none")
    if value not in _INT32:
        raise WireFormatError(f"the return code {value} does not fit: expected {_INT32.start} to {_INT32.stop - 1} (32 bits)")
    return int(value)


def return_code_headers(code: int, custom: Mapping[str, str | None] | None) -> dict[str, str | None]:
    """The headers of a return code, after those of the caller."""
    return {**(custom or {}), names.RETURN_MESSAGE_ERROR_CODE: str(code), names.CONTROL_MESSAGE: "True"}
