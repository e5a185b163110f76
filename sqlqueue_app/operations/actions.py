"""The record of what operators do: one row and one log line for each action, also for what was denied."""

from __future__ import annotations

import getpass
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlqueue_app.instances import managed_alias
from sqlqueue_app.models import ActionResult, Operation, OperatorAction
from sqlqueue_app.operations.error_rows import without_nul
from sqlqueue_app.tables.clock import database_now

logger = logging.getLogger("sqlqueue.actions")

_LONGEST_NAME: Final = 255


@dataclass(frozen=True, slots=True)
class Actor:
    """Who does something: a user of the site, by key and name, and the network address he comes from; or who runs a command."""

    name: str
    key: str = ""
    address: str = ""


def command_actor() -> Actor:
    """Whoever runs this process."""
    try:
        return Actor(f"{getpass.getuser()} (command)")
    except (OSError, KeyError, ImportError):
        return Actor("unknown (command)")  # no such user on this machine, as in some containers


def record_action(
    actor: Actor,
    action: str,
    target: str,
    *,
    result: ActionResult = ActionResult.DONE,
    permission: str = "",
    count: int = 1,
    reason: str = "",
    operation: Operation | None = None,
    now: Callable[[], datetime] | None = None,
) -> OperatorAction:
    """Write the row, in the transaction of the managed tables' database if there is one, and log it. Raises the database's errors.

    `action` is a word such as ``retry``, `target` says on what, `count` on how many. `now` is the clock of the database unless
    another is handed in.
    """
    alias = managed_alias()
    at = now() if now is not None else database_now(alias)
    row = OperatorAction(
        at=at,
        user_key=actor.key[:_LONGEST_NAME],
        user_name=actor.name[:_LONGEST_NAME],
        address=actor.address[:64],
        permission=permission,
        action=action,
        target=without_nul(target),
        count=count,
        result=result,
        reason=without_nul(reason),
        operation=operation,
    )
    row.save(using=alias, force_insert=True)
    level = logging.WARNING if result in (ActionResult.DENIED, ActionResult.FAILED) else logging.INFO
    text = "%s: %s on %s (%s): %s%s"
    why = f", {reason}" if reason else ""
    logger.log(level, text, actor.name, action, target, count, result, why, extra={"event": "operator_action"})
    return row
