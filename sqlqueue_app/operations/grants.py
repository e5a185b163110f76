"""Which rights a role of the database needs, by what it is for, and no more."""

from __future__ import annotations

import enum
from collections.abc import Callable

from sqlqueue_app.conf import Settings
from sqlqueue_app.databases.ddl import ALL_RIGHTS, TableKind
from sqlqueue_app.databases.scripts import Grants, PlannedTable
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.models import (
    Claim,
    ConversationEdge,
    EndpointSeen,
    GroupFigures,
    LakeBatch,
    LakeCopy,
    LakeFile,
    LakePosition,
    MessageFigures,
    NotableMessage,
    PipelineRun,
    QueueFigures,
    TaskResult,
    UsageDay,
)

_LOOK = "SELECT"
_TAKE = "SELECT, UPDATE, DELETE"
_NONE = ""
_OF_PIPELINE = (
    Claim,
    ConversationEdge,
    EndpointSeen,
    GroupFigures,
    LakeBatch,
    LakeCopy,
    LakeFile,
    LakePosition,
    MessageFigures,
    NotableMessage,
    PipelineRun,
    QueueFigures,
    UsageDay,
)


class Purpose(enum.StrEnum):
    """What a role is for."""

    WORKER = "worker"
    """Runs workers; serves the admin; asks by `request()`."""
    SENDER = "sender"
    """Sends, publishes and enqueues tasks, and sees no message."""
    READER = "reader"
    """Reports: looks at everything and changes nothing."""
    PIPELINE = "pipeline"
    """Runs `run_sqlqueue_pipeline`: takes from audit queues, copies from error queues."""


def grants_for(purpose: Purpose, role: str, settings: Settings, dialect: str) -> Grants:
    """The rights of a role on the tables of the settings. Reaches no database."""
    match purpose:
        case Purpose.WORKER:
            return Grants(role)
        case Purpose.SENDER:
            return Grants(role, _of_sender, _tables_with((TaskResult,) if settings.task_backends else (), "SELECT, INSERT", _NONE))
        case Purpose.READER:
            return Grants(role, _look, _look)
        case Purpose.PIPELINE:
            return Grants(role, _of_pipeline(settings, dialect), _tables_with(_OF_PIPELINE, ALL_RIGHTS, _LOOK))


def _look(_table: object) -> str:
    return _LOOK


def _of_sender(table: PlannedTable) -> str:
    return _LOOK if table.kind is TableKind.SUBSCRIPTIONS else "INSERT"


def _tables_with(models: tuple[type, ...], rights: str, others: str) -> Callable[[str], str]:
    names = {model._meta.db_table for model in models}  # type: ignore[attr-defined]
    return lambda table: rights if table in names else others


def _of_pipeline(settings: Settings, dialect: str) -> Callable[[PlannedTable], str]:
    book = settings.address_book(dialect)
    audited = {book.parse(each.audit_queue) for each in settings.senders.values() if each.audit_queue is not None}
    failed = {book.parse(each.error_queue) for each in settings.senders.values()}

    def rights(table: PlannedTable) -> str:
        address: QueueAddress = table.address
        return _TAKE if address in audited else _LOOK if address in failed else _NONE

    return rights
