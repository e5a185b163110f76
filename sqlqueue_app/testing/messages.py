"""A message as a test looks at it: decoded, with what its headers say."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cached_property
from typing import Any

from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.envelope import Intent
from sqlqueue_app.messages.headers import Headers
from sqlqueue_app.messages.serializers import deserialize, is_xml
from sqlqueue_app.messages.times import parse_time
from sqlqueue_app.messages.types import find_message_type, resolve_enclosed


@dataclass(frozen=True)
class SentMessage:
    """A message that was sent: waiting in its queue, put aside until its time, or taken by `drain()` meanwhile."""

    address: QueueAddress
    """The queue that it was sent to, with all parts of its address."""
    headers: Headers
    raw: bytes
    """The body as it stands in the table."""

    @property
    def queue(self) -> str:
        """The name of the queue that it was sent to."""
        return self.address.table

    @property
    def message_types(self) -> list[str]:
        """The names of its types, the concrete one first; what was published has its parents too."""
        return resolve_enclosed(self.headers.get(names.ENCLOSED_MESSAGE_TYPES))

    @property
    def message_type(self) -> str:
        """The name of its type; "" for a message without one."""
        return next(iter(self.message_types), "")

    @property
    def message_id(self) -> str | None:
        """The header NServiceBus.MessageId."""
        return self.headers.get(names.MESSAGE_ID)

    @property
    def intent(self) -> Intent:
        """Whether it was sent, published, or is a reply."""
        return Intent.read(self.headers.get(names.MESSAGE_INTENT))

    @property
    def content_type(self) -> str | None:
        """The header that says how the body is written."""
        return self.headers.get(names.CONTENT_TYPE)

    @cached_property
    def body(self) -> Any:
        """The body read as JSON, numbers with a fraction as Decimal, or as XML, every value as text; else the bytes themselves."""
        try:
            return decoded(self.raw, self.content_type)
        except ValueError:
            return self.raw

    @cached_property
    def message(self) -> Any:
        """The body as an object of its message class; as `body` where no class is registered for its type."""
        known = find_message_type(self.message_type)
        if known is None:
            return self.body
        return deserialize(self.raw, self.content_type, known.cls, known.names or "as_is")

    @property
    def deliver_at(self) -> datetime | None:
        """When a delayed message shall be delivered, aware; None for one without a delay."""
        text = self.headers.get(names.DELIVER_AT)
        return parse_time(text) if text else None

    @property
    def delay(self) -> timedelta:
        """How long after it was sent it shall be delivered, in whole seconds; nothing for a message without a delay."""
        sent = self.headers.get(names.TIME_SENT)
        if self.deliver_at is None or not sent:
            return timedelta()
        # Two readings of the clock stand in the headers.
        return timedelta(seconds=round((self.deliver_at - parse_time(sent)).total_seconds()))

    def __str__(self) -> str:
        when = f" in {self.delay}" if self.deliver_at is not None else ""
        return f"{self.message_type or 'a message without a type'} to {self.queue}{when}: {shown(self.body)}"


def decoded(body: bytes, content_type: str | None = None) -> Any:
    """A body as JSON, or as XML where the content type says so; ValueError for one that is neither."""
    if is_xml(content_type):
        return deserialize(body, content_type)
    return json.loads(body.decode("utf-8-sig"), parse_float=Decimal)


def shown(value: object) -> str:
    """A value of a body for people, cut where it is long."""
    text = json.dumps(value, default=str, ensure_ascii=False) if not isinstance(value, bytes) else repr(value)
    return text if len(text) <= 500 else f"{text[:500]}…"
