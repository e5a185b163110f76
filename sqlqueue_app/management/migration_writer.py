"""Writes tables of the settings as operations into a project's own migration."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from django.apps import apps
from django.db.migrations import Migration
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.writer import MigrationWriter

from sqlqueue_app.dialects.schema import PlannedTable, TableKind
from sqlqueue_app.messages.addresses import AddressBook
from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.migration_operations import CreateDelayedTable, CreateQueue, CreateSubscriptionTable, DropQueue

_OPERATIONS: dict[TableKind, type[CreateQueue]] = {
    TableKind.QUEUE: CreateQueue,
    TableKind.DELAYED: CreateDelayedTable,
    TableKind.SUBSCRIPTIONS: CreateSubscriptionTable,
}
# Line length of black.
_LINE = 88
_Key = tuple[str, str | None, str | None]


def write_queue_migration(app_label: str, tables: Iterable[PlannedTable], book: AddressBook) -> Path | None:
    """Write the next migration of the app, with an operation for each table that its migrations do not create yet.

    Returns the file, or None if nothing is new. Uses no database. ConfigurationError if the app is unknown, sqlqueue's own or an
    installed package, has conflicting migrations, or has a folder that cannot be written.
    """
    loader = _loader_of(app_label)
    known = _created_by_migrations(loader, app_label)
    operations = [_operation(table, book) for table in tables]
    new = [operation for operation in operations if _key(operation) not in known]
    if not new:
        return None
    leaf = _leaf(loader, app_label)
    fragment = "create_queues" if len(new) > 1 else "create_queue"
    migration = _migration(f"{_number_after(leaf):04d}_{fragment}", app_label, leaf, new)
    try:
        path = Path(MigrationWriter(migration).path)
        _refuse_installed(app_label, path)
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(_rendered(migration), encoding="utf-8")
    except (ValueError, OSError) as error:
        # ValueError: MIGRATION_MODULES has migrations of this app switched off
        raise ConfigurationError(f"--make-migration: cannot write a migration of {app_label!r}: {error}") from error
    return path


def _refuse_installed(app_label: str, path: Path) -> None:
    """Raise ConfigurationError for a file among the installed packages, which the next installation overwrites."""
    for folder in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        if path.resolve().is_relative_to(Path(folder).resolve()):
            raise ConfigurationError(
                f"--make-migration: {app_label!r} is an installed package in {folder}: name an app of your project, or give "
                "it a folder of your project in MIGRATION_MODULES"
            )


def _loader_of(app_label: str) -> MigrationLoader:
    if app_label not in apps.app_configs:
        names = ", ".join(sorted(label for label in apps.app_configs if label not in ("sqlqueue_app", "sqlqueue_queues")))
        raise ConfigurationError(f"--make-migration: there is no app with the label {app_label!r}, expected one of {names}")
    if app_label in ("sqlqueue_app", "sqlqueue_queues"):
        raise ConfigurationError(
            f"--make-migration: {app_label!r} is sqlqueue's own app; name an app of your project, whose migrations you keep"
        )
    loader = MigrationLoader(None)
    conflicts = loader.detect_conflicts().get(app_label)
    if conflicts:
        names = ", ".join(sorted(conflicts))
        raise ConfigurationError(
            f"--make-migration: the migrations of {app_label!r} have several leaf nodes, {names}; run makemigrations --merge first"
        )
    return loader


def _leaf(loader: MigrationLoader, app_label: str) -> str | None:
    leaves = loader.graph.leaf_nodes(app_label)
    return leaves[0][1] if leaves else None


def _created_by_migrations(loader: MigrationLoader, app_label: str) -> set[_Key]:
    made: set[_Key] = set()
    leaf = _leaf(loader, app_label)
    if leaf is None:
        return made
    for label, name in loader.graph.forwards_plan((app_label, leaf)):
        if label != app_label:
            continue
        for operation in loader.graph.nodes[label, name].operations:
            if isinstance(operation, CreateQueue):
                made.add(_key(operation))
            elif isinstance(operation, DropQueue):
                made.discard(_key(operation))
    return made


def _key(operation: CreateQueue | DropQueue) -> _Key:
    return operation.name, operation.schema, operation.catalog


def _operation(table: PlannedTable, book: AddressBook) -> CreateQueue:
    address = table.address
    operation = _OPERATIONS[table.kind]
    # Schema and catalog of the settings are left out, so that the migration works for every site.
    by_settings = operation.resolve(book, address.table)
    schema = address.schema if address.schema != by_settings.schema else None
    catalog = address.catalog if address.catalog != by_settings.catalog else None
    return operation(address.table, schema=schema, catalog=catalog)


def _number_after(leaf: str | None) -> int:
    """One more than the number of the leaf's name, as in `makemigrations`."""
    if leaf is None:
        return 1
    number = re.match(r"\d+", leaf)
    return 2 if number is None else int(number[0]) + 1


def _migration(name: str, app_label: str, leaf: str | None, operations: list[CreateQueue]) -> Migration:
    body = {"initial": leaf is None, "dependencies": [] if leaf is None else [(app_label, leaf)], "operations": operations}
    made: Migration = type("Migration", (Migration,), body)(name, app_label)
    return made


def _rendered(migration: Migration) -> str:
    """The file as formatted by black, which Django's writer runs only if it is installed."""
    operations = [f"        {_call(operation)},\n" for operation in migration.operations if isinstance(operation, CreateQueue)]
    names = sorted({type(operation).__name__ for operation in migration.operations})
    dependencies = "".join(f'        ("{label}", "{name}"),\n' for label, name in migration.dependencies)
    initial = "    initial = True\n\n" if migration.initial else ""
    listed = f"[\n{dependencies}    ]" if dependencies else "[]"
    return (
        "from django.db import migrations\n\n"
        f"{_import(names)}\n\n"
        "class Migration(migrations.Migration):\n"
        f"{initial}"
        f"    dependencies = {listed}\n\n"
        f"    operations = [\n{''.join(operations)}    ]\n"
    )


def _import(names: list[str]) -> str:
    line = f"from sqlqueue_app.migration_operations import {', '.join(names)}"
    if len(line) <= _LINE:
        return f"{line}\n"
    listed = "".join(f"    {name},\n" for name in names)
    return f"from sqlqueue_app.migration_operations import (\n{listed})\n"


def _call(operation: CreateQueue) -> str:
    name, positional, named = operation.deconstruct()
    arguments = [_quoted(value) for value in positional] + [f"{key}={_quoted(value)}" for key, value in named.items()]
    line = f"{name}({', '.join(arguments)})"
    if len(line) + 9 <= _LINE:
        return line
    together = ", ".join(arguments)
    if len(together) + 12 <= _LINE or len(arguments) == 1:
        return f"{name}(\n            {together}\n        )"
    listed = "".join(f"            {argument},\n" for argument in arguments)
    return f"{name}(\n{listed}        )"


def _quoted(text: str) -> str:
    """The literal with the quotes that need fewer escapes; double quotes by default."""
    quote = '"' if text.count('"') <= text.count("'") else "'"
    return quote + "".join(_escaped(character, quote) for character in text) + quote


def _escaped(character: str, quote: str) -> str:
    if character in ("'", '"'):
        return f"\\{quote}" if character == quote else character
    return repr(character)[1:-1]
