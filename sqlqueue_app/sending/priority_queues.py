"""The queues for the priorities of messages, as far as the settings know them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from sqlqueue_app.conf import Settings
from sqlqueue_app.messages.addresses import AddressBook, QueueAddress
from sqlqueue_app.messages.errors import ConfigurationError, WireFormatError
from sqlqueue_app.policies.priorities import PRIORITIES, PRIORITY_SUFFIXES, Priority


def checked_priority(value: object) -> Priority:
    """The argument `priority` of a sending call. WireFormatError for anything but one of the three names."""
    if value not in PRIORITIES:
        raise WireFormatError(f"priority is {value!r:.60}; expected 'high', 'normal' or 'low'")
    return cast(Priority, value)


class Priorities:
    """Finds the queue of a priority beside the main queue of an endpoint. Immutable; shared by all threads."""

    def __init__(self, settings: Settings, book: AddressBook) -> None:
        self._queues: dict[QueueAddress, Mapping[str, QueueAddress]] = {}
        for name, endpoint in settings.endpoints.items():
            if endpoint.priorities:
                # The installer resolves each name by itself.
                beside = {level: book.of_queue(name + suffix) for level, suffix in PRIORITY_SUFFIXES.items()}
                self._queues[book.of_queue(name)] = beside
        for name in settings.priority_endpoints:
            main = book.of_endpoint(name)
            self._queues[main] = {level: replace(main, table=name + suffix) for level, suffix in PRIORITY_SUFFIXES.items()}
        self._mains = {queue: main for main, beside in self._queues.items() for queue in beside.values()}

    def __bool__(self) -> bool:
        """Whether any endpoint has such queues."""
        return bool(self._queues)

    def queue(self, main: QueueAddress, priority: Priority) -> QueueAddress:
        """The queue of a priority of the endpoint with this main queue. ConfigurationError if it has none."""
        if priority not in PRIORITY_SUFFIXES:
            return main
        if (beside := self._queues.get(main)) is None:
            name = main.table
            raise ConfigurationError(
                f"priority={priority!r} was given for {name!r}, which has no queues for priorities in these settings: set "
                f'"PRIORITIES": True of endpoint {name!r} and run migrate, or, if another project receives from it with '
                f'PRIORITIES, add {name!r} to SQLQUEUE["PRIORITY_ENDPOINTS"]'
            )
        return beside[priority]

    def kept(self, main: QueueAddress, priority: str | None) -> QueueAddress:
        """The queue for a message caused by one of this priority: that of the priority if there is one."""
        beside = self._queues.get(main)
        return main if beside is None or priority is None else beside.get(priority, main)

    def all_of(self, queue: QueueAddress) -> tuple[QueueAddress, ...]:
        """All queues of the endpoint that has this one, the main queue first; only this one if it has no others."""
        main = self._mains.get(queue, queue)
        return (main, *self._queues.get(main, {}).values())
