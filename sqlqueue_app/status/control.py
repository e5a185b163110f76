"""What an operator asks of running processes: pause, resume, another concurrency. They follow at their next heartbeat."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import transaction
from django.db.models.functions import Now

from sqlqueue_app.messages.errors import ConfigurationError

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from sqlqueue_app.models import Instance


def pause(endpoint: str, *, host: str | None = None, pid: int | None = None, by: str | None = None) -> int:
    """Ask the running processes of an endpoint to receive nothing more until `resume`; returns how many were asked.

    They follow at their next heartbeat, so within 10 seconds: messages that are being handled are finished, then main queue and
    satellites are left alone. Callback queues are not: somebody waits for their replies. Background work goes on, schedules among
    it. A process that is started later receives. `host` and `pid` choose among the processes; ConfigurationError if there is none.
    `by` is who pauses, as alerts and events name them; the user who runs this process unless given.
    """
    return _pause(endpoint, host, pid, by, paused=True)


def resume(endpoint: str, *, host: str | None = None, pid: int | None = None, by: str | None = None) -> int:
    """Ask the processes of an endpoint to receive again; as `pause`."""
    return _pause(endpoint, host, pid, by, paused=False)


def _pause(endpoint: str, host: str | None, pid: int | None, by: str | None, *, paused: bool) -> int:
    from sqlqueue_app.receiving.instances import managed_alias  # noqa: PLC0415 - as in _instances
    from sqlqueue_app.status.events import EventKind, command_actor, record_event  # noqa: PLC0415
    from sqlqueue_app.tables.connections import database_now  # noqa: PLC0415

    alias, who = managed_alias(), command_actor().name if by is None else by
    asked: dict[str, object] = {"paused": paused, "paused_by": who[:255] if paused else ""}
    with transaction.atomic(using=alias):
        changed = _instances(endpoint, host, pid).filter(paused=not paused).update(**asked)
        count = _ask(endpoint, host, pid, **asked)
        if changed:
            kind = EventKind.ENDPOINT_PAUSED if paused else EventKind.ENDPOINT_RESUMED
            record_event(kind, endpoint, {"by": who, "processes": changed}, now=database_now(alias))
    return count


def set_concurrency(endpoint: str, maximum: int, *, host: str | None = None, pid: int | None = None) -> int:
    """Ask the running processes of an endpoint to handle at most `maximum` messages at once, each; returns how many were asked.

    They follow at their next heartbeat, so within 10 seconds; a restart goes back to the settings. `host` and `pid` choose among
    the processes. ConfigurationError for a number below 1, and if there is no such process.
    """
    if type(maximum) is not int or maximum < 1:
        raise ConfigurationError(
            f"the concurrency of {endpoint!r} cannot be {maximum!r}: expected an integer of at least 1; "
            "to receive nothing, stop the worker"
        )
    return _ask(endpoint, host, pid, concurrency=maximum)


def _ask(endpoint: str, host: str | None, pid: int | None, **fields: object) -> int:
    count = _instances(endpoint, host, pid).update(asked_at=Now(), **fields)
    if not count:
        which = "".join(f", {name} {value!r}" for name, value in (("host", host), ("process", pid)) if value is not None)
        raise ConfigurationError(f"no process of endpoint {endpoint!r}{which} is registered: see sqlqueue_status")
    return count


def _instances(endpoint: str, host: str | None, pid: int | None) -> QuerySet[Instance]:
    # Only now: the names that the package exports can be imported before Django is set up.
    from sqlqueue_app.models import Instance  # noqa: PLC0415
    from sqlqueue_app.receiving.instances import managed_alias  # noqa: PLC0415

    chosen = Instance.objects.using(managed_alias()).filter(endpoint=endpoint)
    if host is not None:
        chosen = chosen.filter(host=host)
    if pid is not None:
        chosen = chosen.filter(pid=pid)
    return chosen
