"""The setting `EAGER`: messages are handled where they are sent, for shells and simple tests."""

from __future__ import annotations

from collections.abc import Callable

from django.db import transaction

from sqlqueue_app.conf import Settings
from sqlqueue_app.sending.subscribers import use_subscribers
from sqlqueue_app.status.queues import address_book_of
from sqlqueue_app.testing.draining import handle_waiting
from sqlqueue_app.testing.memory import HandlerSubscribers


def subscribe_handlers(settings: Settings) -> None:
    """Let senders made from now on find the subscribers of events by their handlers: no worker has subscribed them."""
    use_subscribers(HandlerSubscribers(settings.database, address_book_of(settings), settings))


def write_and_handle(alias: str, write: Callable[[], object]) -> None:
    """Call `write`, then handle all waiting messages, in one transaction on the alias (inside `atomic()`: a savepoint).

    An error of a handler is raised unchanged and rolls back the write too, as if nothing had been sent.
    """
    with transaction.atomic(using=alias):
        write()
        handle_waiting(note="raised while EAGER handled {message}: nothing was sent")
