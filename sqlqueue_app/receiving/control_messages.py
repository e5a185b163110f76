"""Subscribe and unsubscribe messages of older endpoints, whose transport knows no subscription table (transport reference 6.6)."""

from __future__ import annotations

import logging
from functools import partial

from django.db import transaction

from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.envelope import IncomingMessage, Intent
from sqlqueue_app.messages.errors import AddressError, ConfigurationError, Unrecoverable
from sqlqueue_app.messages.resolution import AddressBook
from sqlqueue_app.receiving.allowed import AllowedDestinations
from sqlqueue_app.receiving.handlers import Handler
from sqlqueue_app.receiving.routes_of_satellites import Destinations, Unroutable
from sqlqueue_app.tables.subscriptions import Subscription, SubscriptionTable

logger = logging.getLogger("sqlqueue.receive")

_INTENTS = (Intent.SUBSCRIBE, Intent.UNSUBSCRIBE)


def is_subscription_message(incoming: IncomingMessage) -> bool:
    """Whether a control message has to do with subscriptions: by its intent, or by the header that names an event."""
    if not incoming.is_control_message:
        return False
    return names.SUBSCRIPTION_MESSAGE_TYPE in incoming.headers or incoming.intent in _INTENTS


class SubscriptionMessages:
    """Writes what such a message asks for into the subscription table, in the receive transaction. Shared by all threads."""

    def __init__(self, table: SubscriptionTable, book: AddressBook, *, own: str, allowed: AllowedDestinations | None) -> None:
        self._table = table
        self._book = book
        what = "the subscriber's address is"
        self._destinations = Destinations(table.alias, book, satellites=frozenset(), own=own, allowed=allowed, what=what)
        self._handler = Handler("Subscribe", self.handle, None)

    def handler_for(self, incoming: IncomingMessage) -> Handler | None:
        """What handles the message, if it has to do with subscriptions."""
        return self._handler if is_subscription_message(incoming) else None

    def handle(self, incoming: IncomingMessage, _context: object) -> None:
        """Subscribe or unsubscribe. Unrecoverable for a message that does not say what, who or to what."""
        topic = _topic(incoming)
        endpoint, address = self._subscriber(incoming)
        if incoming.intent is Intent.SUBSCRIBE:
            try:
                queue = self._destinations.table(address)
                self._table.subscribe(Subscription(endpoint, topic, self._book.canonical(queue.address)), join=True)
            except (Unroutable, ConfigurationError) as error:
                raise Unrecoverable(f"endpoint {endpoint!r} cannot subscribe to {topic!r}: {error}") from error
            said = partial(logger.info, "endpoint %s has subscribed to %s", endpoint, topic, extra={"event": "subscribed"})
        else:
            self._table.unsubscribe(endpoint, topic, join=True)
            said = partial(logger.info, "endpoint %s has unsubscribed from %s", endpoint, topic, extra={"event": "unsubscribed"})
        transaction.on_commit(said, using=self._table.alias)

    def _subscriber(self, incoming: IncomingMessage) -> tuple[str, str]:
        """Its endpoint and the text of its address."""
        header = incoming.headers.get
        address, endpoint = header(names.SUBSCRIBER_ADDRESS), header(names.SUBSCRIBER_ENDPOINT)
        if address and not endpoint:
            raise Unrecoverable(f"the message has the header {names.SUBSCRIBER_ADDRESS}, but no {names.SUBSCRIBER_ENDPOINT}")
        # Transport 2.x also names the callback queue of the process, which is gone when that ends.
        address = address or incoming.reply_address or incoming.reply_to
        if not address:
            raise Unrecoverable("the message names no subscriber: it has no reply-to address")
        try:
            return endpoint or self._book.received(address).table, address
        except AddressError as error:
            raise Unrecoverable(f"the message names no subscriber: {error}") from error


def _topic(incoming: IncomingMessage) -> str:
    """The full name of the event type, without its assembly."""
    name = incoming.headers.get(names.SUBSCRIPTION_MESSAGE_TYPE) or ""
    topic = name.partition(",")[0].strip()
    if not topic:
        raise Unrecoverable(
            f"the message has the intent {incoming.intent.value}, but its header {names.SUBSCRIPTION_MESSAGE_TYPE} names no event"
        )
    if incoming.intent not in _INTENTS:
        raise Unrecoverable(
            f"the message names the event {topic!r} in its header {names.SUBSCRIPTION_MESSAGE_TYPE}, "
            f"but its intent is {incoming.headers.get(names.MESSAGE_INTENT)!r}: expected Subscribe or Unsubscribe"
        )
    return topic
