"""The conversations in which something has failed lately."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlqueue_app.instances import managed_alias
from sqlqueue_app.messages.errors import ConnectionLost, DatabaseError
from sqlqueue_app.models import FailedMessage, FailureStatus
from sqlqueue_app.operations.looking import looking

# So many failed messages are looked at, the newest ones; so many conversations of them are shown.
LOOKED_AT: Final = 200
SHOWN: Final = 25


@dataclass(frozen=True, slots=True)
class FailingConversation:
    """A conversation with how many of the newest failed messages are in it; the time and the type of the last one."""

    id: str
    failed: int
    last: datetime
    message_type: str


def newest_conversations() -> list[FailingConversation]:
    """The conversations of the newest unresolved messages, the newest first; one statement. Raises ConnectionLost."""
    alias = managed_alias()
    try:
        with looking(alias, "read the newest failures"):
            failures = FailedMessage.objects.using(alias).filter(status=FailureStatus.UNRESOLVED).order_by("-failed_at", "-pk")
            rows = list(failures.values_list("conversation_id", "failed_at", "message_type")[:LOOKED_AT])
    except ConnectionLost:
        raise
    except DatabaseError:
        return []  # the tables of `migrate` are missing, which the overview says
    found: dict[str, FailingConversation] = {}
    for conversation, failed_at, message_type in rows:
        if not conversation or failed_at is None:
            continue
        known = found.get(conversation)
        if known is None:
            found[conversation] = FailingConversation(conversation, 1, failed_at, message_type)
        else:
            found[conversation] = FailingConversation(conversation, known.failed + 1, known.last, known.message_type)
    return list(found.values())[:SHOWN]
