"""Messages of conversations for tests: table rows, and plain values of any shape."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st

from sqlqueue_app.browsing.conversations import ConversationMessage, Kind, MessageOutcome
from sqlqueue_app.messages.times import format_time
from sqlqueue_app.tables.rows import NewRow
from tests.support.error_rows import failed
from tests.support.filling import row

BEGIN = datetime(2026, 5, 1, 12, tzinfo=UTC)


def sent(
    name: str, related_to: str | None = None, *, by: str = "Web", conversation: str = "c-1", intent: str = "Send", **more: str
) -> NewRow:
    """A waiting message."""
    return row(sent_headers(name, related_to, by=by, conversation=conversation, intent=intent, **more))


def sent_headers(
    name: str, related_to: str | None = None, *, by: str = "Web", conversation: str = "c-1", intent: str = "Send", **more: str
) -> dict[str, str | None]:
    found: dict[str, str | None] = {
        "NServiceBus.MessageId": name,
        "NServiceBus.MessageIntent": intent,
        "NServiceBus.ConversationId": conversation,
        "NServiceBus.OriginatingEndpoint": by,
        "NServiceBus.EnclosedMessageTypes": f"Shop.{name.title().replace('-', '')}",
        "NServiceBus.TimeSent": format_time(BEGIN),
    }
    if related_to is not None:
        found["NServiceBus.RelatedTo"] = related_to
    return {**found, **{name.replace("_", "."): value for name, value in more.items()}}


def audited(name: str, related_to: str | None = None, *, by: str = "Web", at: str = "Sales", after: int = 1, **more: str) -> NewRow:
    """The audit copy of a message that was handled this many seconds after the start."""
    ended = BEGIN + timedelta(seconds=after)
    more |= {
        "NServiceBus_ProcessingStarted": format_time(ended - timedelta(milliseconds=250)),
        "NServiceBus_ProcessingEnded": format_time(ended),
        "NServiceBus_ProcessingEndpoint": at,
    }
    return sent(name, related_to, by=by, **more)


def failed_one(name: str, related_to: str, *, by: str = "Sales", at: str = "Billing", conversation: str = "c-1") -> NewRow:
    """A message in an error queue."""
    return failed(
        name,
        NServiceBus_ConversationId=conversation,
        NServiceBus_RelatedTo=related_to,
        NServiceBus_OriginatingEndpoint=by,
        NServiceBus_ProcessingEndpoint=at,
        NServiceBus_FailedQ=at,
    )


_ids = st.sampled_from(["", "a", "b", "c", "'\"</>", "\u202eabc", "\U0001f600"])
_endpoints = st.sampled_from(["", "Sales", "Billing", "a/b", "\u05d0"])
_times = st.none() | st.integers(0, 9).map(lambda seconds: BEGIN + timedelta(seconds=seconds))


@st.composite
def conversation_trees(draw: st.DrawFn) -> list[ConversationMessage]:
    """Messages, each related to any of them, to itself, or to an unknown one."""
    count = draw(st.integers(0, 25))
    return [
        ConversationMessage(
            key=str(number),
            message_id=draw(_ids),
            related_to=draw(_ids),
            message_type=draw(st.sampled_from(["", "Shop.PlaceOrder", "A.Page[[B.C]]"])),
            kind=draw(st.sampled_from(Kind)),
            outcome=draw(st.sampled_from(MessageOutcome)),
            sending=draw(_endpoints),
            receiving=draw(_endpoints),
            sent=draw(_times),
            ended=draw(_times),
        )
        for number in range(count)
    ]
