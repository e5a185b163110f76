"""The task of django-tasks-db."""

from __future__ import annotations

from typing import Any

from django.tasks import task

from benchmarks.peers.adapters.django_rows import insert
from benchmarks.peers.adapters.handling import handle


@task()
def on_message(body: dict[str, Any]) -> None:
    handle(body, insert)
