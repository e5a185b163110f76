"""Who gets an event in a test: the endpoints of the project that handle it, as if their workers had started and subscribed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings as django_settings
from django.test.utils import override_settings

from sqlqueue_app.conf import Settings, get_settings
from sqlqueue_app.endpoint import endpoints_of
from sqlqueue_app.messages.resolution import AddressBook
from sqlqueue_app.operations.known_queues import address_book_of
from sqlqueue_app.sending.subscribers import Subscribers, Topics, use_subscribers
from sqlqueue_app.tables.subscriptions import Subscription

PUBLISHED = "Published"
"""The queue of events that nobody in the project handles, where no table has to be asked."""


class Handling(Subscribers):
    """Looks at the handlers that are there at the moment of a publish, and at no table.

    With `otherwise` an event that no endpoint handles goes to the queue of that name. Without `settings` there are no endpoints.
    """

    def __init__(self, alias: str, book: AddressBook, settings: Settings | None, *, otherwise: str | None = None) -> None:
        super().__init__(alias, book)
        self._book = book
        self._settings = settings
        self._otherwise = otherwise

    def of(self, topics: Topics) -> tuple[Subscription, ...]:
        """Those of the endpoints with a handler for one of the types."""
        endpoints = endpoints_of(self._settings, None) if self._settings is not None and self._settings.endpoints else []
        found = [each.name for each in endpoints if each.config.subscribe and not set(topics).isdisjoint(each.events)]
        if not found and self._otherwise is not None:
            found = [self._otherwise]
        return tuple(Subscription(name, topics[0], self._book.canonical(self._book.of_queue(name))) for name in found)


@contextmanager
def subscribed() -> Iterator[None]:
    """While open, events go to the endpoints of the project that handle them, as if their workers had subscribed at their start.

    The subscription table is neither asked nor written. For setUp: `self.enterContext(subscribed())`.
    """
    # Senders remember whom they ask; they are made anew when a setting changes.
    with override_settings(SQLQUEUE=django_settings.SQLQUEUE):
        settings = get_settings()
        use_subscribers(Handling(settings.database, address_book_of(settings), settings))
        yield
