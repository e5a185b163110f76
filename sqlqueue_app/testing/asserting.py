"""`assert_sent` and `assert_not_sent`: what a test says about messages, and what it hears when that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, NoReturn

from sqlqueue_app.messages.serializers import serialize
from sqlqueue_app.testing.messages import SentMessage, decoded, shown
from sqlqueue_app.testing.sent import sent, type_name

# A delay is known to the second.
TOLERANCE = timedelta(seconds=1)
_MOST_LINES = 20


def assert_sent(
    message: object,
    body: Mapping[str, Any] | None = None,
    *,
    to: str | None = None,
    headers: Mapping[str, str | None] | None = None,
    count: int | None = None,
    delay: timedelta | None = None,
) -> SentMessage:
    """AssertionError unless such a message was sent, and not rolled back; returns the first.

    `message` is a message class, the name of a type, or an object, whose members are looked for. `body` and `headers` hold what
    must be there; more may be. Values are compared as they are on the wire, names of members as handlers read them (`order_id` is
    `OrderId`). `to` is an address. `count` is how many there must be (None: at least one). `delay` is compared to the second;
    `timedelta()` is a message without one.
    """
    found, matching = _find(message, body, to, headers, delay)
    if not matching if count is None else len(matching) != count:
        number = "was not sent" if count is None else f"was sent {len(matching)} times, expected {count}"
        _fail(f"{_wanted(message, body, to, headers, delay)} {number}", found)
    if not matching:
        raise ValueError("count=0: say assert_not_sent(), which has nothing to return")
    return matching[0]


def assert_not_sent(
    message: object = None,
    body: Mapping[str, Any] | None = None,
    *,
    to: str | None = None,
    headers: Mapping[str, str | None] | None = None,
    delay: timedelta | None = None,
) -> None:
    """AssertionError if such a message was sent; without arguments, if any was. The arguments are those of `assert_sent`."""
    found, matching = _find(message, body, to, headers, delay)
    if matching:
        _fail(f"{_wanted(message, body, to, headers, delay)} was sent {len(matching)} times, expected none", found)


def _find(
    message: object,
    body: Mapping[str, Any] | None,
    to: str | None,
    headers: Mapping[str, str | None] | None,
    delay: timedelta | None,
) -> tuple[list[tuple[SentMessage, list[str]]], list[SentMessage]]:
    """Everything that was sent, each with what is different; and what is as wanted."""
    if body is not None and not isinstance(message, (str, type)) and message is not None:
        raise TypeError(f"a body was given beside the message {type(message).__qualname__}: hand in one of them")
    right_place = None if to is None else {_key(each) for each in sent(to=to)}
    checks: list[Callable[[SentMessage], list[str]]] = [
        lambda each: _type_differs(each, message),
        lambda each: _body_differs(each, message if body is None else body),
        lambda each: _headers_differ(each, headers or {}),
        lambda each: _delay_differs(each, delay),
        lambda each: [] if right_place is None or _key(each) in right_place else [f"it went to {each.queue}, expected {to}"],
    ]
    found = [(each, [text for check in checks for text in check(each)]) for each in sent()]
    return found, [each for each, differences in found if not differences]


def _key(message: SentMessage) -> tuple[object, ...]:
    return message.message_id, message.address, message.raw


def _body_differs(each: SentMessage, wanted: object) -> list[str]:
    """Compared as it was written: XML has no numbers."""
    if wanted is None or isinstance(wanted, (str, type)):
        return []
    on_the_wire = serialize(wanted, content_type=each.content_type, types=each.message_types)
    return _differences(decoded(on_the_wire, each.content_type), each.body, "body")


def _name(message: object) -> str:
    return type_name(message if isinstance(message, (str, type)) else type(message))


def _type_differs(each: SentMessage, message: object) -> list[str]:
    if message is None or (name := _name(message)) in each.message_types:
        return []
    return [f"its type is {each.message_type!r}, expected {name!r}"]


def _headers_differ(each: SentMessage, headers: Mapping[str, str | None]) -> list[str]:
    return [
        f"header {name!r} is {each.headers.get(name)!r}, expected {value!r}"
        for name, value in headers.items()
        if each.headers.get(name) != value
    ]


def _delay_differs(each: SentMessage, delay: timedelta | None) -> list[str]:
    if delay is None or abs(each.delay - delay) <= TOLERANCE:
        return []
    return [f"its delay is {each.delay}, expected {delay}"]


def _differences(wanted: Any, found: Any, place: str) -> list[str]:
    """Where `found` lacks something of `wanted`, in words."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        texts: list[str] = []
        for key, value in wanted.items():
            member = _member(found, key)
            texts += _differences(value, found[member], f"{place}[{key!r}]") if member is not None else [f"{place} has no {key!r}"]
        return texts
    if isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        pairs = enumerate(zip(wanted, found, strict=True))
        return [text for number, (a, b) in pairs for text in _differences(a, b, f"{place}[{number}]")]
    # True is 1 in Python, but not on the wire.
    same = wanted == found and isinstance(wanted, bool) == isinstance(found, bool)
    return [] if same else [f"{place} is {shown(found)}, expected {shown(wanted)}"]


def _member(found: dict[str, Any], key: str) -> str | None:
    if key in found:
        return key
    plain = key.replace("_", "").lower()
    return next((name for name in found if name.replace("_", "").lower() == plain), None)


def _wanted(
    message: object,
    body: Mapping[str, Any] | None,
    to: str | None,
    headers: Mapping[str, str | None] | None,
    delay: timedelta | None,
) -> str:
    wanted = message if body is None else body
    wire = None if wanted is None or isinstance(wanted, (str, type)) else decoded(serialize(wanted))
    return "".join(
        [
            "a message" if message is None else _name(message),
            "" if wire is None else f" with {shown(wire)}",
            "" if to is None else f" to {to}",
            "" if not headers else f" with headers {shown(dict(headers))}",
            "" if delay is None else f" with a delay of {delay}",
        ]
    )


def _fail(told: str, found: list[tuple[SentMessage, list[str]]]) -> NoReturn:
    if not found:
        raise AssertionError(f"{told}; nothing was sent")
    lines = [f"{told}; sent were {len(found)}:"]
    for message, differences in found[:_MOST_LINES]:
        lines.append(f"  {message}")
        lines += [f"    but {difference}" for difference in differences]
    if len(found) > _MOST_LINES:
        lines.append(f"  and {len(found) - _MOST_LINES} more")
    raise AssertionError("\n".join(lines))
