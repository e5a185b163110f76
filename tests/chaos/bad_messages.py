"""Messages for the handlers of bad_app, and the rows that these wrote."""

from __future__ import annotations

from pathlib import Path

from sqlqueue_app import send_many
from tests.chaos.bad_app import MODULE
from tests.support.bench import Bench
from tests.support.worker_processes import address


def prepare(bench: Bench) -> None:
    bench.configure(HANDLERS=[MODULE], MAX_CONCURRENCY=4, IMMEDIATE_RETRIES=1)
    with bench.database.connection.cursor() as cursor:
        cursor.execute("CREATE TABLE effects (id varchar(60) NOT NULL, pid integer NOT NULL)")


def send_bad(bench: Bench, kind: str, count: int, released: Path) -> list[str]:
    """Send `count` messages of this kind; returns their ids."""
    ids = [f"{kind}-{number}" for number in range(count)]
    send_many(f"Bad.{kind}", [{"id": each, "released": str(released)} for each in ids], to=address(bench, "Sales"))
    return ids


def effects(bench: Bench) -> list[str]:
    with bench.database.connection.cursor() as cursor:
        cursor.execute("SELECT id FROM effects ORDER BY id")
        return [str(name) for (name,) in cursor.fetchall()]
