"""`manage.py sqlqueue_install`: create the queue tables, print the script for a DBA, compare, or write a migration."""

from __future__ import annotations

import argparse
from typing import Any

from django.core.management.base import CommandParser

from sqlqueue_app.conf import Settings, dialect_of, get_settings, settings_for
from sqlqueue_app.dialects.dialect import DIALECTS, dialect
from sqlqueue_app.dialects.schema import PlannedTable, installation_script
from sqlqueue_app.installation import Purpose, grants_for, planned_tables, wake_up_tables
from sqlqueue_app.management.command_line import ListAction, SqlQueueCommand, add_format_argument
from sqlqueue_app.management.migration_writer import write_queue_migration
from sqlqueue_app.messages.errors import ConfigurationError, counted
from sqlqueue_app.models import managed_models
from sqlqueue_app.tables.announcements import inspect_wake_up_triggers, install_wake_up_triggers
from sqlqueue_app.tables.connections import connection_of
from sqlqueue_app.tables.installation import Finding, FindingKind, inspect_tables, install_tables
from sqlqueue_app.tables.listing import current_catalog

_DESCRIPTION = """\
Creates the missing tables of the endpoints in SQLQUEUE: queues of endpoints and satellites,
tables of delayed messages, error and audit queues, the subscription table; and callback queues
with --instance, or where CALLBACKS is True. Existing tables stay as they are, so it is safe to
run again, also by several processes at once. It needs the right to create tables; workers need
only to read and write them.
"""
_EPILOG = """\
examples:
  manage.py sqlqueue_install                              create missing tables
  manage.py sqlqueue_install --instance web1 --instance web2
                                                          with the callback queues of these machines
  manage.py sqlqueue_install --sql --dialect sqlserver --grant shop > queues.sql
                                                          a script for the DBA; reaches no server, needs no driver
  manage.py sqlqueue_install --sql --grant reporting --for reader
                                                          with the rights of a role that only reads
  manage.py sqlqueue_install --check                      exit 1 if something is missing or different
  manage.py sqlqueue_install --wake-up                    on PostgreSQL: with the trigger that wakes idle workers
  manage.py sqlqueue_install --make-migration shop        write CreateQueue operations into an app

exit codes: 0 done, 1 --check found something or the database refused, 2 wrong arguments or settings
"""


class Command(SqlQueueCommand):
    """Creates missing tables, or prints, compares or writes them as a migration."""

    help = _DESCRIPTION

    def add_arguments(self, parser: CommandParser) -> None:
        parser.epilog, parser.formatter_class = _EPILOG, argparse.RawDescriptionHelpFormatter
        what = parser.add_mutually_exclusive_group()
        what.add_argument("--sql", action="store_true", help="print the script that creates the tables; change nothing")
        what.add_argument("--check", action="store_true", help="list what is missing or different; change nothing")
        what.add_argument("--make-migration", metavar="APP", help="write the tables as operations into the app's next migration")
        parser.add_argument("--dialect", choices=DIALECTS, help="with --sql: for which database (default: that of the settings)")
        parser.add_argument("--grant", metavar="ROLE", help="with --sql: also grant this role what it needs, see --for")
        parser.add_argument(
            "--for",
            dest="purpose",
            choices=[each.value for each in Purpose],
            help="with --grant: what the role is for (default: worker, which also serves the admin)",
        )
        parser.add_argument(
            "--instance",
            action=ListAction,
            metavar="NAME",
            help="also create the callback queues of these machines; may be repeated (default: this machine if CALLBACKS is True)",
        )
        parser.add_argument(
            "--wake-up",
            action="store_true",
            help="PostgreSQL: also add the trigger that announces new messages to tables that others created, such as "
            "NServiceBus; with --sql print it, with --check report missing ones",
        )
        add_format_argument(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        for name in ("dialect", "grant"):
            if options[name] is not None and not options["sql"]:
                raise self.usage_error(f"--{name} requires --sql: add --sql, or leave out --{name}")
        if options["purpose"] is not None and options["grant"] is None:
            raise self.usage_error("--for requires --grant: name the role with --grant, or leave out --for")
        for name in options["instance"] or ():
            if not name.strip() or "@" in name:
                raise self.usage_error(f"--instance: expected the name of a machine, got {name!r}")
        settings = settings_for(options["dialect"]) if options["dialect"] else get_settings()
        if options["wake_up"]:
            self._check_wake_up(settings, options)
        if options["sql"]:
            self._print_script(settings, options)
        elif options["make_migration"] is not None:
            self._make_migration(settings, options)
        elif options["check"]:
            self._check(settings, options)
        else:
            self._install(settings, options)

    def _check_wake_up(self, settings: Settings, options: dict[str, Any]) -> None:
        if options["make_migration"] is not None:
            raise self.usage_error("--wake-up cannot be combined with --make-migration: run it with --wake-up after the migration")
        name = options["dialect"] or dialect_of(settings.database)
        if name != "postgresql":
            raise self.usage_error(f"--wake-up: only PostgreSQL needs triggers that wake receivers, and this is for {name}")
        if not wake_up_tables(settings, name):
            raise self.usage_error(
                '--wake-up: no endpoint in SQLQUEUE["ENDPOINTS"] is woken: remove WAKE_UP False, or leave this out'
            )

    def _print_script(self, settings: Settings, options: dict[str, Any]) -> None:
        known = dialect(options["dialect"] or dialect_of(settings.database))
        role = options["grant"]
        if role is not None and known.name == "sqlite":
            raise self.usage_error("--grant: SQLite has no roles; every user who may write the file may use its queues")
        if role is not None and not role.strip():
            raise self.usage_error(f"--grant: expected the name of a role, got {role!r}")
        tables = planned_tables(settings, known.name, None, options["instance"])
        if not tables:
            self.stderr.write(_NO_ENDPOINTS)
        managed = [model._meta.db_table for model in managed_models()]
        purpose = Purpose(options["purpose"] or Purpose.WORKER)
        grants = None if role is None else grants_for(purpose, role, settings, known.name)
        woken = wake_up_tables(settings, known.name, options["instance"]) if options["wake_up"] else []
        script = installation_script(known, tables, layout=settings.table_layout, grants=grants, managed=managed, woken=woken)
        if options["format"] == "json":
            self.write_json({"dialect": known.name, "sql": script})
        else:
            self.stdout.write(script, ending="")

    def _make_migration(self, settings: Settings, options: dict[str, Any]) -> None:
        known = dialect(dialect_of(settings.database))
        # A migration runs on every machine: it contains only callback queues of named instances.
        tables = planned_tables(settings, known.name, None, options["instance"] or ())
        if not tables:
            raise ConfigurationError(_NO_ENDPOINTS)
        path = write_queue_migration(options["make_migration"], tables, settings.address_book(known.name))
        if options["format"] == "json":
            self.write_json({"migration": str(path) if path else None})
        elif path is None:
            self.stdout.write(f"nothing new: the migrations of {options['make_migration']!r} create every table already")
        else:
            self.stdout.write(f"wrote {path}")

    def _tables(self, settings: Settings, options: dict[str, Any]) -> list[PlannedTable]:
        connection = connection_of(settings.database)
        return planned_tables(settings, dialect_of(settings.database), current_catalog(connection), options["instance"])

    def _wake_up_tables(self, settings: Settings, options: dict[str, Any]) -> list[PlannedTable]:
        return wake_up_tables(settings, dialect_of(settings.database), options["instance"])

    def _install(self, settings: Settings, options: dict[str, Any]) -> None:
        tables = self._tables(settings, options)
        made = install_tables(settings.database, tables, layout=settings.table_layout)
        woken = self._wake_up_tables(settings, options) if options["wake_up"] else []
        triggers = install_wake_up_triggers(settings.database, woken)
        if options["format"] == "json":
            document = [{"kind": table.kind.value, "table": str(table.address), "created": table in made} for table in tables]
            added = [{"table": str(table.address), "created": table in triggers} for table in woken]
            self.write_json({"database": settings.database, "tables": document, "wake_up_triggers": added})
            return
        for table in made:
            self.stdout.write(f"created {table.kind.value} table {table.address!s}")
        for table in triggers:
            self.stdout.write(f"added the wake-up trigger to {table.address!s}")
        if not tables:
            self.stdout.write(_NO_ENDPOINTS)
        elif options["verbosity"] >= 1:
            self.stdout.write(f"{len(made)} created, {len(tables) - len(made)} were there already")
            if woken:
                self.stdout.write(
                    f"{counted(len(triggers), 'wake-up trigger')} added, {len(woken) - len(triggers)} were there already"
                )

    def _check(self, settings: Settings, options: dict[str, Any]) -> None:
        tables = self._tables(settings, options)
        findings = inspect_tables(settings.database, tables, layout=settings.table_layout)
        findings += inspect_wake_up_triggers(settings.database, self._wake_up_tables(settings, options), findings)
        # The trigger is optional: its absence is a problem only with --wake-up.
        fine = {FindingKind.NON_UNICODE_HEADERS} if options["wake_up"] else _INFORMATION
        wrong = [finding for finding in findings if finding.kind not in fine]
        if options["format"] == "json":
            self.write_json({"database": settings.database, "ok": not wrong, "findings": [_document(each) for each in findings]})
        else:
            for finding in findings:
                note = "" if finding in wrong else " (for information)"
                self.stdout.write(f"{finding.text}{note}")
                self.stdout.write("".join(f"    {line}\n" for line in finding.sql.splitlines()), ending="")
            if not wrong:
                self.stdout.write(f"{len(tables)} tables are as they should be")
        if wrong:
            raise SystemExit(1)


_INFORMATION = frozenset({FindingKind.NON_UNICODE_HEADERS, FindingKind.NO_WAKE_UP_TRIGGER})
_NO_ENDPOINTS = 'SQLQUEUE["ENDPOINTS"] names no endpoint: there is no table to create'


def _document(finding: Finding) -> dict[str, str]:
    table = finding.table
    return {
        "problem": finding.kind.value,
        "kind": table.kind.value,
        "table": str(table.address),
        "text": finding.text,
        "sql": finding.sql,
    }
