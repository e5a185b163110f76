"""The signals of received messages: collected by a processor, and sent when the transaction that they report has ended."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from django.dispatch import Signal

from sqlqueue_app.messages.envelope import OutgoingMessage
from sqlqueue_app.messages.errors import DatabaseError, PoisonMessage
from sqlqueue_app.messages.headers import read_headers
from sqlqueue_app.policies.recoverability import Action, MoveToError
from sqlqueue_app.receiving.error_queue import Failure, text_of
from sqlqueue_app.sending.dispatcher import Dispatcher
from sqlqueue_app.signals import about, message_failed, message_handled, message_moved_to_error
from sqlqueue_app.tables.rows import ReceivedRow

if TYPE_CHECKING:
    from sqlqueue_app.receiving.processing import Delivery

logger = logging.getLogger("sqlqueue.receive")

Entry = tuple[str, Signal, dict[str, Any]]


def are_observed() -> bool:
    """Whether a signal that is sent after a commit has a receiver: no receive may begin with that commit."""
    return bool(message_handled.receivers or message_failed.receivers or message_moved_to_error.receivers)


class Outcomes:
    """The signals of one processor, used in its thread."""

    def __init__(self, endpoint: str, queue: str) -> None:
        self._of_all = {"endpoint": endpoint, "queue": queue}
        self._attempts: list[Entry] = []
        self._error: BaseException | None = None
        self.ready: list[Entry] = []
        """The signals whose transaction has ended."""

    def handled(self, delivery: Delivery) -> Callable[[], None]:
        """A function to call when a handled message is committed."""
        entries = self._taken()
        if message_handled.receivers and delivery.called is not None:
            duration = delivery.completed - delivery.started
            entries.append(self._entry("message_handled", message_handled, delivery, duration=duration))
        return partial(self.ready.extend, entries)

    def failed(self, delivery: Delivery, failure: Failure, error: BaseException, action: Action | None) -> None:
        """Note a failed attempt. `action` is None if the transaction is lost: the message is received again."""
        if not are_observed():
            return
        self._error = error
        if message_failed.receivers:
            details = _details(failure, error)
            self._attempts.append(self._entry("message_failed", message_failed, delivery, **details, action=action))
        if action is None:
            self.ready += self._taken()

    def given_up(self, delivery: Delivery, failure: Failure, action: Action) -> Callable[[], None]:
        """A function to call when the decision on a message is committed."""
        error, entries = self._error, self._taken()
        if isinstance(action, MoveToError) and message_moved_to_error.receivers:
            details = _details(failure, error)
            entries.append(
                self._entry("message_moved_to_error", message_moved_to_error, delivery, **details, error_queue=action.queue)
            )
        return partial(self.ready.extend, entries)

    def moved(self, row: ReceivedRow, failure: Failure, error: BaseException | None, error_queue: str) -> Callable[[], None]:
        """A function to call when the move of a row, which may be unreadable, is committed."""
        if not message_moved_to_error.receivers:
            return _nothing
        try:
            headers = read_headers(row.headers)
        except PoisonMessage:
            headers = {}
        known = {**about(headers, row.body), "message_id": str(row.id), "attempt": 0, "error_queue": error_queue}
        entry = ("message_moved_to_error", message_moved_to_error, self._of_all | known | _details(failure, error))
        return partial(self.ready.append, entry)

    def send_immediate(self, dispatcher: Dispatcher, messages: Sequence[OutgoingMessage]) -> None:
        """Write immediate sends. If a receiver of `message_sent` raises, no handler is left to raise the error in."""
        try:
            dispatcher.dispatch(messages)
        except DatabaseError:
            raise
        except Exception:
            text = "a receiver of the signal message_sent failed: messages that a handler sent at once are not sent"
            logger.exception(text, extra={"event": "signal_receiver_failed", **self._of_all})

    def send(self) -> None:
        """Send what is ready. Never raises: an error of a receiver is logged."""
        ready, self.ready = self.ready, []
        for name, signal, arguments in ready:
            for receiver, error in _answers(signal, arguments):
                if isinstance(error, BaseException):
                    # Django has logged the traceback of an Exception.
                    logger.error(
                        "a receiver of the signal %s failed (%r): %s: %s",
                        name,
                        receiver,
                        type(error).__name__,
                        text_of(error),
                        extra={"event": "signal_receiver_failed", "message_id": arguments["message_id"], **self._of_all},
                    )

    def forget(self) -> None:
        """Forget the attempts of a message whose transaction is lost."""
        self._taken()

    def _taken(self) -> list[Entry]:
        taken, self._attempts, self._error = self._attempts, [], None
        return taken

    def _entry(self, name: str, signal: Signal, delivery: Delivery, **more: object) -> Entry:
        incoming = delivery.incoming
        known = {**about(incoming.headers, incoming.body), "message_id": incoming.message_id, "attempt": delivery.attempt}
        return name, signal, self._of_all | known | more


def _answers(signal: Signal, arguments: dict[str, Any]) -> Sequence[tuple[Any, Any]]:
    try:
        return signal.send_robust(**arguments)
    except BaseException as error:  # noqa: BLE001 - send_robust catches Exception only, and formatting one may exit
        return [("unknown", error)]


def _details(failure: Failure, error: BaseException | None) -> dict[str, object]:
    return {"exception": error, "exception_type": failure.exception_type, "exception_message": failure.message}


def _nothing() -> None:
    """The function for a signal without receivers."""
