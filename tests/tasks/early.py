"""A task in a module that is imported before the models."""

from __future__ import annotations

from tests.tasks.framework import task


@task
def early() -> None:
    return None
