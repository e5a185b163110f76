"""Tasks as a project would write them."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from django.db import transaction
from django.db.models.functions import Now

from sqlqueue_app import message_status, revoke, send
from sqlqueue_app.conf import get_settings
from sqlqueue_app.models import Claim
from tests.tasks.framework import WRITTEN, TaskContext, task


@task
def add(first: Any, second: Any = 0) -> Any:
    return first + second


@task
def echo(*args: Any, **kwargs: Any) -> list[Any]:
    return [list(args), kwargs]


@task
def nothing() -> None:
    return None


@task
async def add_later(first: int, second: int) -> int:
    return first + second


@task
def fail(text: str = "no luck") -> None:
    raise ValueError(text)


@task
def leave() -> None:
    raise SystemExit(3)


@task
def return_no_json() -> object:
    return object()


@task(takes_context=True)
def answer(context: TaskContext, word: str) -> list[Any]:
    result = context.task_result
    return [word, context.attempt, str(result.status), result.id, result.args]


@task(takes_context=True)
def succeed_at(context: TaskContext, attempt: int) -> int:
    if context.attempt < attempt:
        raise ValueError(f"attempt {context.attempt}")
    return context.attempt


@task(takes_context=True)
def ask_for_itself(context: TaskContext) -> list[str]:
    result_id = context.task_result.id
    if context.attempt == 1:
        raise ValueError("attempt 1")
    return [message_status(result_id).state, revoke(result_id)]


def write(name: str) -> None:
    Claim.objects.using(get_settings().database).create(name=WRITTEN + name, until=Now())


@task
def keep(name: str) -> None:
    write(name)


@task
def keep_and_fail(name: str) -> None:
    write(name)
    send("Tasks.Never", {}, to="error")
    raise ValueError(name)


@task
async def akeep(name: str, fails: bool = False) -> None:
    await Claim.objects.using(get_settings().database).acreate(name=WRITTEN + name, until=Now())
    if fails:
        raise ValueError(name)


@task
async def linger() -> None:
    try:
        await asyncio.sleep(60)
    finally:
        await Claim.objects.using(get_settings().database).aexists()


@task
def compute() -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        pass


@task
def swallow(name: str) -> None:
    """Continue after a database error."""
    write(name)
    try:
        write(name)
    except Exception:  # noqa: BLE001
        return


@task
def set_rollback(name: str) -> None:
    write(name)
    transaction.set_rollback(True, using=get_settings().database)


@task
def enqueue_another(name: str) -> str:
    return str(keep.enqueue(name).id)


@task
async def aenqueue_another(name: str) -> str:
    return str((await keep.aenqueue(name)).id)


def no_task() -> None:
    """A plain function, not a task."""
