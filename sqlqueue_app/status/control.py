"""Requests of operators to running processes: pause, resume, concurrency. Processes follow at their next heartbeat."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import transaction
from django.db.models.functions import Now

from sqlqueue_app.conf.kinds import MAX_PARALLEL
from sqlqueue_app.messages.errors import ConfigurationError

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from sqlqueue_app.models import Instance


def pause(endpoint: str, *, host: str | None = None, pid: int | None = None, by: str | None = None) -> int:
    """Pause the running processes of an endpoint until `resume`. Returns the number of processes.

    They follow at their next heartbeat, so within 10 seconds: they finish the messages in progress, then stop receiving from main
    queue and satellites, but not from callback queues, whose replies are awaited. Background work continues, including schedules. A
    process that starts later receives. `host` and `pid` choose among the processes; ConfigurationError if none matches.
    `by` is the operator's name in alerts and events; the default is the user who runs this process.
    """
    return _pause(endpoint, host, pid, by, paused=True)


def resume(endpoint: str, *, host: str | None = None, pid: int | None = None, by: str | None = None) -> int:
    """Resume the processes of an endpoint. Parameters and errors are those of `pause`."""
    return _pause(endpoint, host, pid, by, paused=False)


def _pause(endpoint: str, host: str | None, pid: int | None, by: str | None, *, paused: bool) -> int:
    from sqlqueue_app.models import managed_alias  # noqa: PLC0415 - as in _instances
    from sqlqueue_app.status.events import EventKind, command_actor, record_event  # noqa: PLC0415
    from sqlqueue_app.tables.connections import database_now  # noqa: PLC0415

    if by is not None and not isinstance(by, str):
        raise ConfigurationError(f"by is {by!r}: expected the name of an operator, or None for the user who runs this process")
    alias, who = managed_alias(), command_actor().name if by is None else by
    values: dict[str, object] = {"paused": paused, "paused_by": who[:255] if paused else ""}
    with transaction.atomic(using=alias):
        changed = _instances(endpoint, host, pid).filter(paused=not paused).update(**values)
        count = _request(endpoint, host, pid, **values)
        if changed:
            kind = EventKind.ENDPOINT_PAUSED if paused else EventKind.ENDPOINT_RESUMED
            record_event(kind, endpoint, {"by": who, "processes": changed}, now=database_now(alias))
    return count


def set_concurrency(endpoint: str, maximum: int, *, host: str | None = None, pid: int | None = None) -> int:
    """Set the maximum of messages that each running process of an endpoint handles at once. Returns the number of processes.

    They follow at their next heartbeat, so within 10 seconds; a restart restores the settings. `host` and `pid` choose among
    the processes. ConfigurationError for a number that is not from 1 to 10,000, and if no process matches.
    """
    if type(maximum) is not int or not 1 <= maximum <= MAX_PARALLEL:
        raise ConfigurationError(
            f"the concurrency of {endpoint!r} cannot be {maximum!r}: expected an integer of at least 1 and at most "
            f"{MAX_PARALLEL}; to receive nothing, stop the worker"
        )
    return _request(endpoint, host, pid, concurrency=maximum)


def _request(endpoint: str, host: str | None, pid: int | None, **fields: object) -> int:
    count = _instances(endpoint, host, pid).update(asked_at=Now(), **fields)
    if not count:
        which = "".join(f", {name} {value!r}" for name, value in (("host", host), ("process", pid)) if value is not None)
        raise ConfigurationError(f"no process of endpoint {endpoint!r}{which} is registered: see sqlqueue_status")
    return count


def _instances(endpoint: str, host: str | None, pid: int | None) -> QuerySet[Instance]:
    # Imported here, because the names that the package exports can be imported before Django is set up.
    from sqlqueue_app.models import Instance, managed_alias  # noqa: PLC0415

    _check_processes(endpoint, host, pid)
    chosen = Instance.objects.using(managed_alias()).filter(endpoint=endpoint)
    if host is not None:
        chosen = chosen.filter(host=host)
    if pid is not None:
        chosen = chosen.filter(pid=pid)
    return chosen


def _check_processes(endpoint: object, host: object, pid: object) -> None:
    if not isinstance(endpoint, str):
        raise ConfigurationError(f"endpoint is {endpoint!r}: expected the name of an endpoint")
    if host is not None and not isinstance(host, str):
        raise ConfigurationError(f"host is {host!r}: expected the name of a machine, or None for all")
    # A boolean is an int too. The column has 64 bits.
    if pid is not None and (isinstance(pid, bool) or not isinstance(pid, int) or not 0 <= pid < 2**63):
        raise ConfigurationError(f"pid is {pid!r}: expected the id of a process, or None for all")
