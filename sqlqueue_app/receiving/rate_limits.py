"""Rate limits of message types, exact over all processes of an endpoint.

A row of the database for each endpoint and type holds the next free time. A message that arrives too early reserves a time and
goes to the delayed messages until then, so no thread waits. The reservation is committed at once, before the handler is called:
the row is locked only while it is read and written. If a process is killed in between, its reserved time is lost; its message
is back in the queue.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final
from uuid import UUID

from django.db import IntegrityError, router, transaction

from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.envelope import OutgoingMessage
from sqlqueue_app.messages.errors import ConfigurationError, LockTimeout, MessageBodyError
from sqlqueue_app.messages.times import format_time
from sqlqueue_app.messages.types import plain_name
from sqlqueue_app.models import RateReservation
from sqlqueue_app.policies.rates import Rate, RateState, admit
from sqlqueue_app.receiving.error_queue import headers_of_copy
from sqlqueue_app.receiving.handlers import Handler
from sqlqueue_app.sending.composer import Routes
from sqlqueue_app.tables.connections import SecondConnections, connection_of, errors_of_alias
from sqlqueue_app.tables.installation import migrate_command
from sqlqueue_app.tables.managed import RateTable, key_of, reserved_elsewhere

if TYPE_CHECKING:
    from sqlqueue_app.receiving.processing import Delivery, ProcessorConfig
    from sqlqueue_app.tables.receive_transaction import ReceiveTransaction

logger = logging.getLogger("sqlqueue.receive")

# An attempt fails if another process has reserved a time: one of a thousand threads may wait for all others.
_TRIES: Final = 1_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def with_rates(handlers: Iterable[Handler], rates: Mapping[str, Rate]) -> list[Handler]:
    """The handlers with the rates of the setting RATE_LIMITS, by type or `Namespace.*`, which override those in the code."""
    if not rates:
        return list(handlers)
    found = Routes(rates)
    return [replace(handler, rate=found.find(plain_name(handler.message_type)) or handler.rate) for handler in handlers]


class TypeLimits:
    """The rate limits of an endpoint. Shared by its threads."""

    def __init__(
        self,
        endpoint: str,
        rates: Mapping[str, Rate],
        alias: str,
        second: SecondConnections | None,
    ) -> None:
        """`second` are the connections on which times are reserved; None on SQLite, which has one writer."""
        self._endpoint = endpoint
        self._rates = rates
        self._alias = alias
        self._second = second
        self._table = RateTable(alias, RateReservation._meta.db_table)

    def check(self) -> None:
        """Raise ConfigurationError if the table is missing or in another database, DatabaseError if it cannot be queried."""
        if (kept_in := router.db_for_write(RateReservation)) != self._alias:
            what = reserved_elsewhere(self._endpoint, kept_in, self._alias)
            raise ConfigurationError(f'{what}: add "sqlqueue_app.routers.SqlQueueRouter" to DATABASE_ROUTERS')
        table = RateReservation._meta.db_table
        if table not in connection_of(self._alias).introspection.table_names():
            raise ConfigurationError(
                f"the rate limits of endpoint {self._endpoint!r} need the table {table!r} in {self._alias!r}: "
                f"run {migrate_command(self._alias)}"
            )

    def postpones(self, config: ProcessorConfig, receive: ReceiveTransaction, delivery: Delivery) -> bool:
        """Whether the message arrived too early: the receive transaction then stores it as a delayed message.

        Removes the mark of a reservation from the headers. DatabaseError if the database refuses.
        """
        incoming = delivery.incoming
        is_reserved = incoming.headers.pop(names.RATE_RESERVATION, None) is not None
        types = incoming.message_types
        if not types:
            # An unreadable body fails the message later.
            with suppress(MessageBodyError):
                types = config.handlers.types_in_body(incoming)
        message_type = next((name for name in types if name in self._rates), None)
        if message_type is None:
            return False
        due = self._reserve(message_type, receive, is_reserved)
        if due is None:
            return False
        headers = headers_of_copy(delivery.row, incoming.headers) | {names.RATE_RESERVATION: format_time(due)}
        copy = OutgoingMessage(config.address, headers, incoming.body, deliver_at=due)
        config.joined_dispatcher.dispatch([copy], begun=True)
        extra = config.log_extra("rate_limited", incoming.message_id, due=due.isoformat())
        logger.debug("the rate limit of %s (%s) delays the message", message_type, self._rates[message_type], extra=extra)
        return True

    def _reserve(self, message_type: str, receive: ReceiveTransaction, is_reserved: bool) -> datetime | None:
        """The time that is reserved for the message; None if it may begin now."""
        # A failed attempt must not return its time: its handler was called.
        with receive.before_message() if self._second is None else self._second.used():
            due = self._admit(message_type, is_reserved)
        return None if due is None else _EPOCH + timedelta(microseconds=due)

    def _admit(self, message_type: str, is_reserved: bool) -> int | None:
        key = key_of(self._endpoint, message_type)
        rate = self._rates[message_type]
        for _ in range(_TRIES):
            now, known = self._table.read(key)
            due, after = admit(rate, known or RateState(), now, reserved=is_reserved)
            if self._table.replace(key, known, after) if known is not None else self._create(key, message_type, after):
                return due
        raise LockTimeout(f"other processes changed the rate limit of {message_type!r} during each of {_TRIES:,} attempts")

    def _create(self, key: UUID, message_type: str, state: RateState) -> bool:
        """Write the first state. Returns False if another process was faster."""
        rows = RateReservation.objects.using(self._alias)
        values = {"reserved_until": state.reserved_until, "handled_until": state.handled_until}
        with errors_of_alias(self._alias, "make the first reservation of a rate limit"):
            try:
                with transaction.atomic(using=self._alias):
                    rows.create(pk=key, endpoint=self._endpoint[:255], message_type=message_type[:255], **values)
            except IntegrityError:
                return False
        return True
