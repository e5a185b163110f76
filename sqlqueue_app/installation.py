"""Installation: the tables that the settings require, the rights of database roles, and the steps after `migrate`."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from django.apps import AppConfig, apps
from django.core.management.base import CommandError
from django.db import router, transaction
from django.db.models import Model

from sqlqueue_app.conf import EndpointSettings, Settings, get_settings, instance_name
from sqlqueue_app.dialects.schema import ALL_RIGHTS, Grants, PlannedTable, TableKind
from sqlqueue_app.messages.addresses import AddressBook
from sqlqueue_app.messages.errors import AddressError, DatabaseError
from sqlqueue_app.models import Claim, TaskResult, lake, managed_models
from sqlqueue_app.status.queues import QueueKind, pipeline_addresses, table_key
from sqlqueue_app.tables.connections import connection_of, dialect_of_connection
from sqlqueue_app.tables.installation import check_address, delayed_address, install_tables, subscription_address
from sqlqueue_app.tables.listing import current_catalog


def planned_tables(
    settings: Settings, dialect: str, catalog: str | None = None, instance_names: Iterable[str] | None = None
) -> list[PlannedTable]:
    """The tables that the endpoints of the settings need in this dialect, each once, in the order of the settings.

    Callback queues are planned for `instance_names`; None means this machine (or INSTANCE) if CALLBACKS is True. `catalog` is
    the connection's own on SQL Server. Uses no database. Raises AddressError for a name that the database cannot hold.
    """
    return _once(_tables(settings, settings.address_book(dialect, catalog), instance_names), dialect)


def wake_up_tables(settings: Settings, dialect: str, instance_names: Iterable[str] | None = None) -> list[PlannedTable]:
    """The planned tables of messages that wake workers on PostgreSQL: queues unless WAKE_UP is False, and delayed tables."""
    listening = [endpoint for endpoint in settings.endpoints.values() if endpoint.wake_up is not False]
    if dialect != "postgresql" or not listening:
        return []
    names = None if instance_names is None else tuple(instance_names)
    book = settings.address_book(dialect)
    queues = [
        PlannedTable(TableKind.QUEUE, book.of_queue(queue))
        for endpoint in listening
        for queue in (*endpoint.receiving_queue_names(), *_callback_queues(endpoint, names))
    ]
    delayed = [PlannedTable(TableKind.DELAYED, delayed_address(book, name)) for name in settings.senders]
    return _once([*queues, *delayed], dialect)


def _once(tables: Iterable[PlannedTable], dialect: str) -> list[PlannedTable]:
    found: dict[tuple[str | None, ...], PlannedTable] = {}
    for table in tables:
        check_address(table.address, dialect)
        found.setdefault(table_key(table.address), table)
    return list(found.values())


def unusable_names(settings: Settings, dialect: str) -> list[str]:
    """The problems with names of planned tables, one sentence each."""
    wrong: list[str] = []
    for table in _tables(settings, settings.address_book(dialect), None):
        try:
            check_address(table.address, dialect)
        except AddressError as error:
            wrong.append(str(error))
    return list(dict.fromkeys(wrong))


def _tables(settings: Settings, book: AddressBook, instance_names: Iterable[str] | None) -> Iterator[PlannedTable]:
    names = None if instance_names is None else tuple(instance_names)
    for endpoint in settings.senders.values():
        for queue in (*endpoint.receiving_queue_names(), *_callback_queues(endpoint, names)):
            yield PlannedTable(TableKind.QUEUE, book.of_queue(queue))
        yield PlannedTable(TableKind.DELAYED, delayed_address(book, endpoint.name))
        for text in (endpoint.error_queue, endpoint.audit_queue):
            if text is not None:
                yield PlannedTable(TableKind.QUEUE, book.parse(text))
    if settings.senders:
        yield PlannedTable(TableKind.SUBSCRIPTIONS, subscription_address(book))


def _callback_queues(endpoint: EndpointSettings, instance_names: tuple[str, ...] | None) -> Iterator[str]:
    if instance_names is None:
        instance_names = (instance_name(endpoint),) if endpoint.callbacks is True else ()
    for instance in instance_names:
        yield from endpoint.callback_queue_names(instance)


_READ = "SELECT"
_READ_AND_DELETE = "SELECT, UPDATE, DELETE"
_NONE = ""


class Purpose(enum.StrEnum):
    """The purpose of a role."""

    WORKER = "worker"
    """Runs workers, serves the admin, sends requests."""
    SENDER = "sender"
    """Sends, publishes and enqueues tasks; reads no messages."""
    READER = "reader"
    """Reads everything and changes nothing."""
    PIPELINE = "pipeline"
    """Runs `run_sqlqueue_pipeline`: takes from audit queues, copies error queues."""


def grants_for(purpose: Purpose, role: str, settings: Settings, dialect: str) -> Grants:
    """The rights of a role on the tables of the settings. Uses no database."""
    match purpose:
        case Purpose.WORKER:
            if settings.pipeline is None or settings.pipeline.cron is None:
                return Grants(role)
            # This worker runs the pipeline.
            rights, others = _of_pipeline(settings, dialect)
            return Grants(role, lambda table: rights(table) if table in others else ALL_RIGHTS, others=others)
        case Purpose.SENDER:
            return Grants(role, _of_sender, _tables_with((TaskResult,) if settings.task_backends else (), "SELECT, INSERT", _NONE))
        case Purpose.READER:
            return Grants(role, _read_only, _read_only)
        case Purpose.PIPELINE:
            written: list[type[Model]] = [Claim, *(model for model in managed_models() if model.__module__ == lake.__name__)]
            rights, others = _of_pipeline(settings, dialect)
            return Grants(role, rights, _tables_with(written, ALL_RIGHTS, _READ), others)


def _read_only(_table: object) -> str:
    return _READ


def _of_sender(table: PlannedTable) -> str:
    return _READ if table.kind is TableKind.SUBSCRIPTIONS else "INSERT"


def _tables_with(models: Iterable[type[Model]], rights: str, others: str) -> Callable[[str], str]:
    names = {model._meta.db_table for model in models}
    return lambda table: rights if table in names else others


def _of_pipeline(settings: Settings, dialect: str) -> tuple[Callable[[PlannedTable], str], tuple[PlannedTable, ...]]:
    """The rights on each table, and the queues that the settings of the pipeline name and no endpoint does."""
    book = settings.address_book(dialect)
    audited, failed = (pipeline_addresses(settings, kind, book) for kind in (QueueKind.AUDIT, QueueKind.ERROR))
    taken = set(map(table_key, audited))
    # The pipeline also updates the index of failures, which reads the error queues of the endpoints.
    read = {table_key(each) for each in (*failed, *(book.parse(each.error_queue) for each in settings.senders.values()))}

    def rights(table: PlannedTable) -> str:
        key = table_key(table.address)
        return _READ_AND_DELETE if key in taken else _READ if key in read else _NONE

    planned = {table_key(each.address) for each in planned_tables(settings, dialect)}
    named = _once((PlannedTable(TableKind.QUEUE, each) for each in (*audited, *failed)), dialect)
    return rights, tuple(each for each in named if table_key(each.address) not in planned)


def install_after_migrate(*, using: str, verbosity: int = 1, stdout: Any = None, **_: Any) -> None:
    """Install missing tables of the endpoints, in the database of `SQLQUEUE["DATABASE"]` only.

    Connected to `post_migrate` of this app, so it runs once per `migrate`. Does nothing if `INSTALL_AFTER_MIGRATE` is off. Prints
    the created tables unless verbosity is 0. Raises ConfigurationError for invalid settings. A DatabaseError becomes a
    CommandError, which `migrate` prints in one line.
    """
    settings = get_settings()
    if not settings.install_after_migrate or using != settings.database:
        return
    connection = connection_of(using)
    tables = planned_tables(settings, dialect_of_connection(connection).name, current_catalog(connection))
    try:
        made = install_tables(using, tables, layout=settings.table_layout)
    except DatabaseError as error:
        raise CommandError(" ".join(f"{error}{error.remedy}".split())) from error
    if verbosity >= 1:
        out = stdout or sys.stdout
        for table in made:
            out.write(f"  Created {table.kind.value} table {table.address}\n")


def create_groups_after_migrate(*, app_config: AppConfig, using: str, apps: Any = apps, **_: Any) -> None:
    """Create missing permission groups in the database of the users. Connected as `install_after_migrate`.

    `apps` has the models whose tables exist: after `migrate sqlqueue_app` those of the users may be missing.
    """
    if "group" in apps.all_models["auth"]:
        create_groups(app_config, using)


# Each group includes the one before. Readers do not see bodies, which may hold personal data.
_READER: Final = ("view_queue", "view_instance")
_WRITER: Final = (*_READER, "view_body", "export", "retry", "edit_message", "archive", "delete_message", "control_endpoint")
_ADMIN: Final = (*_WRITER, "move_message", "purge_queue", "manage_redirect", "manage_settings")
GROUPS: Final = {"sqlqueue reader": _READER, "sqlqueue writer": _WRITER, "sqlqueue admin": _ADMIN}


def create_groups(app_config: AppConfig, using: str) -> list[str]:
    """Create missing permission groups, unless Django's users are not installed or in another database; returns their names."""
    if not apps.is_installed("django.contrib.auth"):
        return []
    from django.contrib.auth.management import create_permissions  # noqa: PLC0415 - needs django.contrib.auth in INSTALLED_APPS
    from django.contrib.auth.models import Group, Permission  # noqa: PLC0415

    if not router.allow_migrate_model(using, Group):
        return []
    # The signal of Django's auth app creates them too, possibly later.
    create_permissions(app_config, verbosity=0, using=using)
    missing = set(GROUPS) - set(Group.objects.using(using).filter(name__in=GROUPS).values_list("name", flat=True))
    for name in sorted(missing):
        with transaction.atomic(using=using):
            group, is_new = Group.objects.using(using).get_or_create(name=name)
            if is_new:
                wanted = Permission.objects.using(using).filter(content_type__app_label=app_config.label, codename__in=GROUPS[name])
                group.permissions.set(wanted)
    return sorted(missing)
