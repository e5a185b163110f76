"""After `migrate`: make the queue tables that are missing, and the groups of permissions."""

from __future__ import annotations

import sys
from typing import Any

from django.apps import AppConfig

from sqlqueue_app.conf import get_settings
from sqlqueue_app.operations.installation_plan import planned_tables
from sqlqueue_app.operations.permission_groups import make_groups
from sqlqueue_app.tables.connections import connection_of, dialect_of_connection
from sqlqueue_app.tables.inspection import current_catalog
from sqlqueue_app.tables.installation import install_tables


def install_after_migrate(*, using: str, verbosity: int = 1, stdout: Any = None, **_: Any) -> None:
    """Install the missing tables of the endpoints in settings, in the database of `SQLQUEUE["DATABASE"]` alone.

    Connected to Django's `post_migrate` for this one app, so it runs once per `migrate`. Does nothing with
    `INSTALL_AFTER_MIGRATE` off. Prints what it made, unless verbosity is 0. Raises what the installer raises: ConfigurationError
    for wrong settings, DatabaseError for what the database refused.
    """
    settings = get_settings()
    if not settings.install_after_migrate or using != settings.database:
        return
    connection = connection_of(using)
    tables = planned_tables(settings, dialect_of_connection(connection).name, current_catalog(connection))
    made = install_tables(using, tables, layout=settings.table_layout)
    if verbosity >= 1:
        out = stdout or sys.stdout
        for table in made:
            out.write(f"  Created {table.kind.value} table {table.address}\n")


def make_groups_after_migrate(*, app_config: AppConfig, using: str, **_: Any) -> None:
    """Make the groups of permissions that are missing, in the database of the users. Connected as `install_after_migrate`."""
    make_groups(app_config, using)
