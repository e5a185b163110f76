"""django-q2 with the ORM as its broker; its worker is `qcluster`."""

from __future__ import annotations

from collections.abc import Sequence

import django
from django.core.management import call_command
from django.db import transaction

from benchmarks.peers.adapters import serving

TASK = "benchmarks.peers.adapters.tasks_q2.on_message"


class DjangoQ(serving.Sender):
    """`async_task()`; many calls share a transaction, because there is no bulk function."""

    def __init__(self) -> None:
        django.setup()
        # Models can be imported only now.
        from django_q.tasks import async_task  # noqa: PLC0415

        self._async_task = async_task

    def send(self, body: serving.Body) -> None:
        """One insert."""
        self._async_task(TASK, body)

    def send_many(self, bodies: Sequence[serving.Body]) -> None:
        """An insert each, committed together."""
        with transaction.atomic():
            for body in bodies:
                self._async_task(TASK, body)


def install() -> None:
    """Create its tables."""
    django.setup()
    call_command("migrate", verbosity=0)


if __name__ == "__main__":
    serving.main(install, DjangoQ)
