"""`drain()`: what a worker would do, done in the test's own thread and transaction."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from sqlqueue_app.conf import Settings, get_settings
from sqlqueue_app.endpoint import Endpoint, ReceivingQueue, endpoints_of
from sqlqueue_app.messages.errors import PoisonMessage
from sqlqueue_app.receiving.delayed_tables import due_messages_of
from sqlqueue_app.receiving.due_messages import DueMessages
from sqlqueue_app.receiving.processing import MessageProcessor
from sqlqueue_app.receiving.reading import read_message
from sqlqueue_app.tables.connections import connection_of
from sqlqueue_app.tables.rows import ReceivedRow
from sqlqueue_app.testing.messages import SentMessage
from sqlqueue_app.testing.processors import Drained, FailedInTest, transaction_for, watching_processor
from sqlqueue_app.testing.sent import record

# Two handlers that send to one another would go on for ever.
MOST_MESSAGES = 10_000


def drain(
    endpoint: str | None = None,
    *,
    with_delayed: bool = False,
    after: timedelta | None = None,
    raise_errors: bool = True,
    limit: int | None = None,
) -> Drained:
    """Handle what waits in the queues of an endpoint, or of all in the settings, and what handlers send there, until all is done.

    The real handlers are called by the real processing, in the calling thread and, if it has a transaction open on the queues'
    alias, inside of that: in Django's TestCase all of it is rolled back after the test. `on_commit` hooks of handlers run when
    their message is done. What a handler sends at once, past the receive transaction, goes when its message is done.

    With `raise_errors` the first exception of a handler is raised as it is, its message is in the queue again (in mode none it is
    lost). Without, failures go their way: retries, the error queue.

    Delayed messages wait until the database's clock says that they are due. `after` moves them so much nearer, as if that time had
    passed; `with_delayed` waits for none: each comes in its turn, until nothing is left. `limit` is the most messages to handle.
    AssertionError after 10,000 messages: two handlers send to one another.
    """
    settings = get_settings()
    drained = Drained()
    drain = _Drain(settings, endpoint, drained, raise_errors)
    failure: BaseException | None = None
    try:
        drain.run(with_delayed=with_delayed, after=after, limit=limit)
    except FailedInTest as stop:
        failure = stop.error
    except PoisonMessage as poison:
        failure = poison
    finally:
        record(connection_of(settings.database), drained.messages)
    if failure is not None:
        failure.add_note(f"raised while drain() handled {drain.handling}; drain(raise_errors=False) lets recoverability act")
        raise failure
    return drained


class _Drain:
    """One call of `drain()`."""

    def __init__(self, settings: Settings, endpoint: str | None, drained: Drained, raises: bool) -> None:
        self._drained = drained
        self._queues = [
            _Queue(each, queue, drained, raises)
            for each in endpoints_of(settings, None if endpoint is None else [endpoint])
            for queue in each.receiving_queues(None)
            # Satellites of old peers hold nothing that a handler is called for.
            if not queue.is_drained
        ]
        self._due = [due for due in due_messages_of(settings) if due.delayed.exists()]
        self.handling = "nothing"

    def run(self, *, with_delayed: bool, after: timedelta | None, limit: int | None) -> None:
        if after is not None:
            self._bring_nearer(after)
        for done, (queue, rows) in enumerate(self._received(with_delayed), start=1):
            self.handling = queue.told(rows)
            queue.processor.process(rows)
            if limit is not None and done >= limit:
                return
            if done >= MOST_MESSAGES:
                raise AssertionError(f"drain() has handled {done} messages and finds more: do two handlers send to one another?")

    def _received(self, with_delayed: bool) -> Iterator[tuple[_Queue, list[ReceivedRow]]]:
        """One message of each queue in turn; the delayed ones that are due when nothing else is left."""
        while True:
            found = False
            for queue in self._queues:
                if rows := queue.processor.receive():
                    found = True
                    yield queue, rows
            if not found and not self._move_due() and not (with_delayed and self._wait_for_the_next()):
                return

    def _move_due(self) -> int:
        return sum(_move_all(due) for due in self._due)

    def _wait_for_the_next(self) -> bool:
        waits = [seconds for due in self._due if (seconds := due.delayed.seconds_until_due()) is not None]
        if not waits:
            return False
        # Due times are kept to the millisecond, or to three on SQL Server.
        self._bring_nearer(timedelta(seconds=max(0.0, min(waits)), milliseconds=10))
        return True

    def _bring_nearer(self, time: timedelta) -> None:
        for due in self._due:
            due.delayed.bring_nearer(time)


def _move_all(due: DueMessages) -> int:
    moved = 0
    while batch := due.move_batch():
        moved += batch
    return moved


class _Queue:
    """One queue of a drain, with its processor."""

    def __init__(self, endpoint: Endpoint, queue: ReceivingQueue, drained: Drained, raises: bool) -> None:
        self._queue = queue
        self._drained = drained
        config = endpoint.processor_config(queue)
        self.processor: MessageProcessor = watching_processor(config, transaction_for(queue.table), drained, raises=raises)

    def told(self, rows: list[ReceivedRow]) -> str:
        """What is handled, in words; remembers it too."""
        try:
            incoming = read_message(rows[0])
        except PoisonMessage:
            return f"a row of {self._queue.name!r} that cannot be read"
        message = SentMessage(self._queue.table.address, incoming.headers, incoming.body)
        self._drained.messages.append(message)
        return f"message {incoming.message_id} ({message.message_type or 'without a type'}) of queue {self._queue.name!r}"
