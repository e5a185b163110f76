"""The message that has a worker run a task. It holds the id of the result, whose row knows the rest."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlqueue_app.conf import TASK_MESSAGE, TaskQueue
from sqlqueue_app.messages.envelope import OutgoingMessage
from sqlqueue_app.sending.current import current_handling
from sqlqueue_app.sending.sender import sender
from sqlqueue_app.tables.writing import all_or_none

if TYPE_CHECKING:
    from sqlqueue_app.models import TaskResult as Row


class TaskPost:
    """Sends the messages of the tasks of one queue: as the endpoint that handles a message now, SEND_AS, or the task's endpoint."""

    def __init__(self, place: TaskQueue) -> None:
        self._sender = sender(place.endpoint)
        book = self._sender.dispatcher.book
        self._address = book.canonical(book.of_queue(place.queue))

    def compose(self, row: Row, **options: Any) -> OutgoingMessage:
        """The message of a result. `options` are those of `send()`: `message_id`, `delay`, `deliver_at`."""
        handled = current_handling()
        # The path is for people who look at the message.
        body = {"result_id": row.id, "task": row.task}
        incoming = None if handled is None else handled.incoming
        return self._sender.composer.compose(TASK_MESSAGE, body, to=self._address, incoming=incoming, **options)

    def enqueue(self, row: Row, written: Callable[[], None], *, deliver_at: datetime | None = None) -> None:
        """Write a new row and its message, both or none: in the transaction of the queue's database if there is one.

        Else committed on return; while only another database is in `atomic()`, when that one commits. `written` is called then.
        Also in a handler of mode receive_only it is all in the receive transaction: a worker must find the row of its message.
        """
        message = self.compose(row, message_id=row.id, deliver_at=deliver_at)

        def write() -> None:
            with all_or_none(self._sender.alias):
                row.save(using=self._sender.alias, force_insert=True)
                self._sender.dispatcher.dispatch([message], begun=True)
            written()

        self._sender.when_possible(write)

    def again(self, row: Row, delay: timedelta) -> None:
        """Have a task run again, later; in the caller's transaction."""
        self._sender.dispatcher.dispatch([self.compose(row, delay=delay)], begun=True)
