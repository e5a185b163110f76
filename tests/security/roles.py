"""Roles of a PostgreSQL with the rights of `sqlqueue_install --sql --grant`, and nothing else."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import Error as DjangoDatabaseError

from sqlqueue_app.messages.errors import DatabaseError
from tests.contract.tables import execute
from tests.support.databases import QueueDatabase

# What a project has beside the tables of this app; its own roles read and write them.
OF_DJANGO = (
    "auth_user",
    "auth_group",
    "auth_permission",
    "auth_user_user_permissions",
    "auth_user_groups",
    "auth_group_permissions",
)


def role_for(database: QueueDatabase, purpose: str, *more: str) -> str:
    """A new role, with what the script of a DBA gives it, and these statements, in which {role} stands for it."""
    role = database.create_role(purpose)
    out = StringIO()
    call_command("sqlqueue_install", "--sql", "--grant", role, "--for", purpose, stdout=out)
    execute(database, out.getvalue())
    for statement in more:
        execute(database, statement.format(role=f'"{role}"'))
    return role


def refuses(database: QueueDatabase, *statements: str) -> None:
    """The role that the database is used as may do none of this."""
    for statement in statements:
        with pytest.raises((DjangoDatabaseError, DatabaseError), match=r"permission denied|must be owner"):
            execute(database, statement)


def row_of(database: QueueDatabase, query: str, *values: Any) -> Any:
    with database.connection.cursor() as cursor:
        cursor.execute(query, values)
        return cursor.fetchone()
