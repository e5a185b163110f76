"""Callback queues of instances that are gone: which there are, and removing them.

A queue counts as gone with the process that leased it last, once its heartbeat is. Where no process of an instance name lives any
more, on another machine than this one, the rest of its pool has gone with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta

from sqlqueue_app.conf import Settings, instance_name
from sqlqueue_app.instances import claim_callback_queue, managed_alias
from sqlqueue_app.messages.errors import AddressError, DatabaseError, TableMismatch
from sqlqueue_app.operations.instance_status import InstanceStatus, read_instances
from sqlqueue_app.operations.known_queues import QueueKind, address_book_of, known_queues
from sqlqueue_app.tables.installation import drop_queue
from sqlqueue_app.tables.queue import Depth, QueueTable, queue_table


@dataclass(frozen=True, slots=True)
class GoneCallbackQueue:
    """A callback queue that no live process holds. `depth` is None where its table is gone already and only a row is left.

    `silent` is for how long nothing was heard of the instance.
    """

    name: str
    endpoint: str
    instance: str
    silent: timedelta
    table: QueueTable
    depth: Depth | None


def gone_callback_queues(settings: Settings, older_than: timedelta = timedelta()) -> list[GoneCallbackQueue]:
    """The callback queues of dead instances that were silent for at least so long, each once; reads only. Raises DatabaseErrors.

    Names in rows that are those of other queues of the settings, or of tables that are no queues, are left out.
    """
    instances, rows, problem = read_instances()
    if problem is not None:
        raise DatabaseError(f"the instances cannot be read: {problem.text}")
    book = address_book_of(settings)
    leased = {each.callback_queue for each in instances if each.alive}
    others = {queue.address for queue in known_queues(settings, rows) if queue.kind is not QueueKind.CALLBACK}
    found: dict[str, GoneCallbackQueue] = {}
    for name, dead in _names(settings, instances):
        try:
            address = book.of_queue(name)
        except AddressError:
            continue  # the row was written by hand
        if name in leased or name in found or address in others or dead.heartbeat_age < older_than:
            continue
        table = queue_table(settings.database, address)
        try:
            depth = table.depth() if table.exists() else None
        except TableMismatch:
            continue
        if depth is not None or name == dead.callback_queue:
            found[name] = GoneCallbackQueue(name, dead.endpoint, dead.name, dead.heartbeat_age, table, depth)
    return list(found.values())


def _names(settings: Settings, instances: Iterable[InstanceStatus]) -> Iterator[tuple[str, InstanceStatus]]:
    """Names of callback queues, each with the dead instance that it was of; the one heard of last goes before the others."""
    every = sorted(instances, key=lambda each: each.heartbeat_age)
    living = {(each.endpoint, each.name) for each in every if each.alive}
    for dead in every:
        if not dead.alive and dead.callback_queue:
            yield dead.callback_queue, dead
    for dead in every:
        endpoint = settings.senders.get(dead.endpoint)
        if dead.alive or endpoint is None or (dead.endpoint, dead.name) in living or dead.name == instance_name(endpoint):
            continue
        for name in endpoint.callback_queue_names(dead.name):
            yield name, dead


def remove_callback_queue(gone: GoneCallbackQueue) -> bool:
    """Drop the table with what is in it, and forget the instance; False if a process has leased it meanwhile.

    The queue is leased while it is dropped. If that fails the lease stays, and shows as a dead instance 40 seconds later. Raises
    DatabaseErrors.
    """
    lease = claim_callback_queue(gone.name, alias=managed_alias(), endpoint=gone.endpoint, name=gone.instance)
    if lease is None:
        return False
    drop_queue(gone.table.alias, gone.table.address)
    lease.release()
    return True
