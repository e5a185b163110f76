"""Updating the index of failures and reading it."""

from __future__ import annotations

import uuid
from datetime import datetime

from sqlqueue_app.conf import get_settings
from sqlqueue_app.failures.index import IndexState, catch_up
from sqlqueue_app.messages.failure_groups import deterministic_guid
from sqlqueue_app.models import FailedMessage
from tests.support.error_rows import FAILED_AT as NOW


def index_errors(limit: int = 500, now: datetime = NOW) -> IndexState:
    return catch_up(get_settings(), limit=limit, now=now)


def only() -> FailedMessage:
    (found,) = FailedMessage.objects.using(alias()).all()
    return found


def alias() -> str:
    return get_settings().database


def id_of(name: str) -> uuid.UUID:
    return deterministic_guid(name, "Sales")


def statuses() -> dict[str, str]:
    return {each.message_id: each.get_status_display() for each in FailedMessage.objects.using(alias()).all()}
