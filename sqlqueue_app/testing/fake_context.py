"""A context to call a handler with, as one calls a function: it notes what the handler says and writes nothing."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.envelope import IncomingMessage, Intent, OutgoingMessage, new_message_id
from sqlqueue_app.messages.headers import read_headers
from sqlqueue_app.operations.known_queues import address_book_of
from sqlqueue_app.receiving.context import MessageContext
from sqlqueue_app.sending.composer import Composer, sender_identity
from sqlqueue_app.testing.messages import SentMessage
from sqlqueue_app.testing.subscribing import PUBLISHED, Handling


class FakeContext(MessageContext):
    """What handlers get, with everything they can ask of it; its sends are composed and routed as ever, and go nowhere.

        context = FakeContext()
        place_order(PlaceOrder("1", Decimal("9.90")), context)
        assert [message.message for message in context.sent] == [ShipOrder("1")]

    Needs the setting SQLQUEUE for routes, and no database. A plain `send()` in the handler is none of the context's business:
    `InMemoryEndpoint` sees that too.
    """

    def __init__(
        self,
        *,
        endpoint: str = "Endpoint",
        headers: Mapping[str, str | None] | None = None,
        message_id: str | None = None,
        reply_to: str | None = "Requester",
        attempt: int = 1,
        connection: Any = None,
    ) -> None:
        """What the handler shall see: its endpoint, the headers and id of the message, the queue for replies (None: no reply is
        possible), the number of the attempt, the connection."""
        settings = get_settings()
        book = address_book_of(settings, endpoint=endpoint)
        nobody = Handling(settings.database, book, None, otherwise=PUBLISHED)
        told = {names.MESSAGE_ID: message_id or new_message_id(), names.REPLY_TO_ADDRESS: reply_to, **(headers or {})}
        incoming = IncomingMessage(uuid.uuid4(), {name: value for name, value in told.items() if value is not None}, b"{}")
        self._at_once: list[OutgoingMessage] = []
        super().__init__(
            incoming,
            attempt=attempt,
            composer=Composer(settings, book, sender_identity(endpoint, book), subscribers=nobody),
            connection=connection,
            send_at_once=self._note_at_once,
        )

    def _note_at_once(self, messages: Sequence[OutgoingMessage]) -> None:
        self._at_once.extend(messages)

    @property
    def sent(self) -> list[SentMessage]:
        """Everything that was sent, in order; what goes at once, whatever becomes of the message, comes first."""
        return [self._as_sent(message) for message in (*self._at_once, *self.outgoing)]

    @property
    def replies(self) -> list[SentMessage]:
        """What of it answers the sender."""
        return [message for message in self.sent if message.intent is Intent.REPLY]

    @property
    def published(self) -> list[SentMessage]:
        """What of it are events; each stands there once, whoever may have subscribed."""
        return [message for message in self.sent if message.intent is Intent.PUBLISH]

    @property
    def forwarded_to(self) -> list[str]:
        """The queues that the message itself was sent on to."""
        return [message.queue for message in self.sent if message.message_id == self.message_id]

    def _as_sent(self, message: OutgoingMessage) -> SentMessage:
        if message.is_delayed:
            headers = dict(read_headers(self._composer.delayed_row(message).headers))
            headers.pop(names.FORWARD_DESTINATION, None)
            return SentMessage(message.destination, headers, message.body)
        return SentMessage(message.destination, message.headers, message.body)
