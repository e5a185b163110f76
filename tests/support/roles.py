"""Roles of a PostgreSQL server that have exactly the privileges of `sqlqueue_install --sql --grant`."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import Error as DjangoDatabaseError

from sqlqueue_app.installation import GROUPS
from sqlqueue_app.messages.errors import DatabaseError
from tests.support.databases import QueueDatabase
from tests.support.tables import execute

# Tables of a project besides those of this app; its own roles read and write them.
OF_DJANGO = (
    "auth_user",
    "auth_group",
    "auth_permission",
    "auth_user_user_permissions",
    "auth_user_groups",
    "auth_group_permissions",
)


def role_for(database: QueueDatabase, purpose: str, *more: str) -> str:
    """A new role with the privileges of the installation script. `more` are statements to run, with {role} for its name."""
    role = database.create_role(purpose)
    out = StringIO()
    call_command("sqlqueue_install", "--sql", "--grant", role, "--for", purpose, stdout=out)
    execute(database, out.getvalue())
    for statement in more:
        execute(database, statement.format(role=f'"{role}"'))
    return role


def refuses(database: QueueDatabase, *statements: str) -> None:
    """Assert that the current role may run none of these statements."""
    for statement in statements:
        with pytest.raises((DjangoDatabaseError, DatabaseError), match=r"permission denied|must be owner"):
            execute(database, statement)


def row_of(database: QueueDatabase, query: str, *values: Any) -> Any:
    with database.connection.cursor() as cursor:
        cursor.execute(query, values)
        return cursor.fetchone()


VIEW_ONLY = ""
# The permission that each URL requires besides view; VIEW_ONLY: none. Actions require a confirmation.
ACTIONS = {
    "queue_purge": "purge_queue",
    "queue_purge_expired": "purge_queue",
    "queue_remove": "purge_queue",
    "queue_remove_gone": "purge_queue",
    "queue_move_all": "move_message",
    "queue_message_delete": "delete_message",
    "queue_message_move": "move_message",
    "endpoint_pause": "control_endpoint",
    "endpoint_resume": "control_endpoint",
    "endpoint_pause_instance": "control_endpoint",
    "endpoint_resume_instance": "control_endpoint",
    "endpoint_concurrency": "control_endpoint",
    "endpoint_minimum": "control_endpoint",
    "endpoint_remove_instance": "control_endpoint",
    "delayedmessage_deliver": "retry",
    "delayedmessage_cancel": "delete_message",
    **dict.fromkeys(("schedule_run", "schedule_cancel_run", "schedule_enable", "schedule_disable"), "manage_settings"),
    **dict.fromkeys(("schedule_make", "schedule_edit", "schedule_delete"), "manage_settings"),
    "subscription_unsubscribe": "manage_settings",
    "failedmessage_note": "manage_settings",
    "failedmessage_retry": "retry",
    "failedmessage_archive": "archive",
    "failedmessage_unarchive": "archive",
    "failedmessage_complete": "retry",
    "failedmessage_redirect": "retry",
    "failedmessage_delete": "delete_message",
    "failedmessage_edit": "edit_message",
    "redirect_make": "manage_redirect",
    "redirect_edit": "manage_redirect",
    "redirect_remove": "manage_redirect",
    "operation_cancel": "retry",
    "notificationrule_make": "manage_settings",
    "notificationrule_edit": "manage_settings",
    "notificationrule_secret": "manage_settings",
    "notificationrule_test": "manage_settings",
    "notificationrule_enable": "manage_settings",
    "notificationrule_disable": "manage_settings",
    "notificationrule_delete": "manage_settings",
    "notificationrule_again": "manage_settings",
    "checkresult_mute": "manage_settings",
    "checkresult_unmute": "manage_settings",
    "checkresult_run": "manage_settings",
}
VIEWS = {
    **dict.fromkeys(("dashboard_changelist", "queue_changelist", "queue_messages", "queue_message"), VIEW_ONLY),
    **dict.fromkeys(("endpoint_changelist", "endpoint_endpoint"), VIEW_ONLY),
    **dict.fromkeys(
        ("failedmessage_changelist", "failedmessage_messages", "failedmessage_archived", "failedmessage_resolved"), VIEW_ONLY
    ),
    **dict.fromkeys(("failedmessage_gone", "failedmessage_unreadable", "failedmessage_pending", "failedmessage_group"), VIEW_ONLY),
    **dict.fromkeys(("failedmessage_message", "redirect_changelist", "operation_changelist", "operation_operation"), VIEW_ONLY),
    **dict.fromkeys(("operatoraction_changelist", "event_changelist", "checkresult_changelist"), VIEW_ONLY),
    "search_changelist": VIEW_ONLY,
    **dict.fromkeys(("conversation_changelist", "conversation_conversation"), VIEW_ONLY),
    **dict.fromkeys([f"analytics_{name}" for name in ("changelist", "groups", "map", "usage", "notable")], VIEW_ONLY),
    **dict.fromkeys(("lakesearch_changelist", "pipelinerun_changelist"), VIEW_ONLY),
    **dict.fromkeys(("delayedmessage_changelist", "delayedmessage_table", "delayedmessage_message"), VIEW_ONLY),
    **dict.fromkeys(("notificationrule_changelist", "notificationrule_rule", "notificationrule_deliveries"), VIEW_ONLY),
    **dict.fromkeys(("schedule_changelist", "schedule_schedule", "schedule_message", "subscription_changelist"), VIEW_ONLY),
    "delayedmessage_body": "view_body",
    "queue_save": "view_body",
    "queue_message_body": "view_body",
}


def has(kind: str, codename: str) -> bool:
    return kind == "superuser" or codename in (VIEW_ONLY, *GROUPS.get(f"sqlqueue {kind}", ()))
