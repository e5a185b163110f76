"""django-tasks-db, the database backend of Django's own Tasks; its worker is `db_worker`."""

from __future__ import annotations

from collections.abc import Sequence

import django
from django.core.management import call_command
from django.db import transaction

from benchmarks.peers.adapters import serving


class DjangoTasks(serving.Sender):
    """`enqueue()`; many calls share a transaction, because there is no bulk function."""

    def __init__(self) -> None:
        django.setup()
        # Models can be imported only now.
        from benchmarks.peers.adapters.tasks_django import on_message  # noqa: PLC0415

        self._task = on_message

    def send(self, body: serving.Body) -> None:
        """One insert."""
        self._task.enqueue(body)

    def send_many(self, bodies: Sequence[serving.Body]) -> None:
        """An insert each, committed together."""
        with transaction.atomic():
            for body in bodies:
                self._task.enqueue(body)


def install() -> None:
    """Create its table."""
    django.setup()
    call_command("migrate", verbosity=0)


if __name__ == "__main__":
    serving.main(install, DjangoTasks)
