"""Where the retry of a failed message goes: the queue in which it failed, or where a redirect or a header says."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from sqlqueue_app.conf import Settings
from sqlqueue_app.instances import managed_alias
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import AddressError, QueueNotFound, TableMismatch
from sqlqueue_app.models import Redirect
from sqlqueue_app.operations.bulk.outcome import Reason, Why
from sqlqueue_app.operations.known_queues import QueueKind, address_book_of, known_queues
from sqlqueue_app.receiving.allowed import allowed_destinations
from sqlqueue_app.tables.queue import QueueTable, queue_table


@dataclass(frozen=True, slots=True)
class Target:
    """Where a retry goes. `text` is the address for people and for the index; `redirect` is the one that has turned it."""

    address: QueueAddress
    text: str
    redirect: Redirect | None = None


class RetryTargets:
    """Finds targets for one batch or one dry run: each queue is looked for once, the redirects are read once.

    For one thread; not kept longer, because queues are made and dropped.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.book = address_book_of(settings)
        self._allowed = allowed_destinations(settings.allowed_destinations, self.book)
        self._found: dict[str, Target | Why] = {}
        self._tables: dict[str, QueueTable | None] = {}

    def of(self, failed_q: str, retry_to: str = "") -> Target | Why:
        """The target of a message with these headers, or why it has none."""
        text = (retry_to or failed_q).strip()
        if not text:
            return Reason.NO_FAILED_QUEUE, ""
        key = f"{bool(retry_to)} {text}"
        if key not in self._found:
            self._found[key] = self._find(text, turned=not retry_to)
        return self._found[key]

    def error_table(self, name: str) -> QueueTable | None:
        """The table of the error queue that the index calls so; None if there is none any more."""
        if name not in self._tables:
            self._tables[name] = self._existing(name)
        return self._tables[name]

    def _existing(self, name: str) -> QueueTable | None:
        try:
            address = self._error_queues.get(name) or self.book.parse(name)
        except AddressError:
            return None
        table = queue_table(self._settings.database, address)
        return table if table.exists() else None

    @cached_property
    def _error_queues(self) -> dict[str, QueueAddress]:
        return {queue.name: queue.address for queue in known_queues(self._settings) if queue.kind is QueueKind.ERROR}

    @cached_property
    def _redirects(self) -> dict[str, Redirect]:
        return {each.from_address: each for each in Redirect.objects.using(managed_alias())}

    def _find(self, text: str, *, turned: bool) -> Target | Why:
        try:
            address = self.book.parse(text)
            canonical = self.book.canonical(address)
            redirect = self._redirects.get(canonical) if turned else None
            if redirect is not None:
                address, canonical = self.book.parse(redirect.to_address), redirect.to_address
        except AddressError as error:
            return Reason.BAD_ADDRESS, str(error)
        if address in self._error_queues.values():
            return Reason.ERROR_QUEUE, canonical
        if redirect is None and self._allowed is not None and not self._allowed.has(address):
            return Reason.NOT_ALLOWED, self._allowed.shown(address)
        table = queue_table(self._settings.database, address)
        try:
            if not table.exists():
                return Reason.NO_QUEUE, table.qualified
            table.layout()
        except (QueueNotFound, TableMismatch):
            return Reason.NO_QUEUE, table.qualified
        return Target(address, canonical, redirect)
