"""The public calls `schedule()` and `unschedule()`: schedules in the database."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Literal

from sqlqueue_app.messages.errors import ConfigurationError, MessageBodyError, MessageTypeError
from sqlqueue_app.messages.serializers import serialize
from sqlqueue_app.messages.types import name_fault, registry


def schedule(
    name: str,
    message_type: str | type,
    body: Mapping[str, object] | None = None,
    *,
    cron: str | None = None,
    every: timedelta | int | None = None,
    at: datetime | None = None,
    timezone: str | None = None,
    start: datetime | None = None,
    end: datetime | None = None,
    missed: Literal["send", "skip"] = "send",
    to: str | None = None,
) -> bool:
    """Create or update the schedule `name` in the database: workers send its message at its times, each once.

    Give one of `cron` (a crontab line), `every` (seconds or a timedelta of whole seconds, counted from `start`, else from now) and
    `at` (once). `timezone` is the zone of the crontab line, by default Django's TIME_ZONE. All times are aware datetimes.
    `missed`: if no worker ran at a time, "send" sends the message when one starts, within a day, once for several times (that of
    `at` however late); "skip" sends nothing that is more than a minute late. `to` is an address; without it the routes apply.

    Inside `atomic()` on the database of the app's tables it commits and rolls back with your rows. If nothing has changed, nothing
    is written, and a time that was missed is still sent. Whether the schedule is enabled never changes. Returns whether anything
    has changed. Raises ConfigurationError for a wrong argument and for a name that SCHEDULES has, MessageTypeError for a class
    that is not a message type, and DatabaseError.
    """
    # Imported here, because the names that the package exports can be imported before Django is set up.
    from sqlqueue_app.models import managed_alias  # noqa: PLC0415
    from sqlqueue_app.status.schedule_definitions import store  # noqa: PLC0415
    from sqlqueue_app.tables.connections import database_now, guarded_read  # noqa: PLC0415

    type_name = _type_name(name, message_type)
    kind, seconds = _checked(name, {"cron": cron, "interval": every, "once": at}, {"at": at, "start": start, "end": end}, missed)
    alias = managed_alias()
    with guarded_read(alias, f"store the schedule {name!r}"):
        return store(
            name,
            type_name,
            database_now(alias),
            kind=kind,
            cron=cron or "",
            every_seconds=seconds,
            at=at,
            time_zone=timezone or "",
            starts_at=start,
            ends_at=end,
            missed=missed,
            destination=_destination(name, to),
            body=_body_of(name, body),
        )


def _destination(name: str, to: object) -> str:
    """The address as it is stored, "" for the routes. ConfigurationError for anything else; `store` parses it."""
    if to is None:
        return ""
    if not isinstance(to, str) or not to.strip():
        raise ConfigurationError(f"schedule {name!r} has to={to!r}: expected the address of a queue, or None for the routes")
    return to


def _type_name(name: object, message_type: object) -> str:
    """The name of the message type. MessageTypeError for another class or name, ConfigurationError for an object."""
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise ConfigurationError(f"the schedule's name is {name!r}: expected printable text")
    if isinstance(message_type, str):
        if fault := name_fault(message_type):
            raise MessageTypeError(
                f"schedule {name!r}: the message type {message_type!r} {fault}; expected a name such as 'Sales.CloseDay'"
            )
        return message_type
    if not isinstance(message_type, type):
        given = type(message_type).__qualname__
        raise ConfigurationError(f"schedule {name!r} has a {given}: expected its class or type name; pass its members as the body")
    return registry.of(message_type).name


def _body_of(name: str, body: object) -> dict[str, object] | None:
    """The body as it is stored: as JSON, like that of a message. ConfigurationError for one that cannot be sent."""
    if body is None:
        return None
    if not isinstance(body, Mapping):
        raise ConfigurationError(f"schedule {name!r} has body={body!r}: expected a dictionary with the members of the message")
    try:
        text = serialize(dict(body))
    except MessageBodyError as error:
        raise ConfigurationError(f"schedule {name!r} has a body that cannot be sent: {error}") from error
    found: dict[str, object] = json.loads(text)
    # The column keeps numbers as floats.
    if json.loads(serialize(found), parse_float=Decimal) != json.loads(text, parse_float=Decimal):
        raise ConfigurationError(f"schedule {name!r} has a number in its body with more digits than a float: send it as text")
    return found


def _checked(name: str, kinds: Mapping[str, object], instants: Mapping[str, object], missed: str) -> tuple[str, int | None]:
    """The kind of the schedule, and the seconds of an interval. ConfigurationError for arguments that do not fit."""
    given = [kind for kind, value in kinds.items() if value is not None]
    if len(given) != 1:
        raise ConfigurationError(f"schedule {name!r} has {len(given)} of cron, every and at: give exactly one")
    for argument, instant in instants.items():
        if instant is not None and (not isinstance(instant, datetime) or instant.tzinfo is None):
            raise ConfigurationError(f"schedule {name!r} has {argument}={instant!r}: expected an aware datetime, give it a tzinfo")
    if missed not in ("send", "skip"):
        raise ConfigurationError(f"schedule {name!r} has missed={missed!r}: expected 'send' or 'skip'")
    every = kinds["interval"]
    seconds = every.total_seconds() if isinstance(every, timedelta) else every
    if seconds is None:
        return given[0], None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds % 1 != 0:
        raise ConfigurationError(f"schedule {name!r} has every={every!r}: expected whole seconds, or a timedelta of whole seconds")
    return given[0], int(seconds)


def unschedule(name: str) -> bool:
    """Delete the schedule `name` from the database, in the caller's transaction. Returns whether there was one.

    Messages that were sent already stay. A schedule of the settings is not deleted. Raises DatabaseError.
    """
    from sqlqueue_app.models import managed_alias  # noqa: PLC0415 - as in schedule
    from sqlqueue_app.status.schedule_definitions import delete  # noqa: PLC0415
    from sqlqueue_app.tables.connections import guarded_read  # noqa: PLC0415

    with guarded_read(managed_alias(), f"delete the schedule {name!r}"):
        return delete(name)
