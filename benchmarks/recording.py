"""Record the statements that a worker sends per message, so that plain loops and pgbench can send the same ones.

Nothing is copied from the package: one thread of a real worker empties a small queue while the server (or SQLite) reports every
statement that it receives. The statements that repeat with each message are kept.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from typing import Any

import django

from benchmarks.databases import QUEUE, Database, run_child

MESSAGES = 300
"""Enough that the same strings repeat even if fifty messages share a transaction."""

LOWEST = "{lowest}"
"""Replaces the lowest number to look at, which the worker sends."""

_EXECUTE = re.compile(r'(EXECUTE\s+)("?\w+"?)\s*\(\s*(-?\d+)')
_PREPARE = re.compile(r'PREPARE\s+("?\w+"?)[^$]*?\bAS\s+(.*)', re.DOTALL)
_STATEMENT = "statement: "
_FROM_QUEUE = re.compile(rf'DELETE FROM ("public"\.)?"{QUEUE}"\s')


@dataclass(frozen=True, slots=True)
class Recording:
    """The strings of one receive and its end, each a round trip on PostgreSQL, and the statement prepared for them."""

    prepare: str
    cycle: tuple[str, ...]

    @property
    def one_trip(self) -> str:
        """A whole cycle as one string, starting with the end of the previous message."""
        begin, *end = self.cycle
        return "; ".join([*end, begin])

    @property
    def prepared_statement(self) -> str:
        """The plain statement with the parameters of the worker."""
        prepared = _PREPARE.search(self.prepare)
        called = re.search(r"EXECUTE\s+\S+?\s*\(([^)]*)\)", self.one_trip)
        if prepared is None or called is None:
            raise RuntimeError(f"the worker prepares its receive in another way: {self.prepare!r}, {self.one_trip!r}")
        statement = prepared.group(2)
        for number, value in enumerate(called.group(1).split(","), start=1):
            statement = statement.replace(f"${number}", value.strip())
        return statement

    def as_json(self) -> str:
        """The recording as JSON, for a child process."""
        return json.dumps(asdict(self))


def recording_of(text: str) -> Recording:
    """The recording that `as_json` wrote."""
    found = json.loads(text)
    return Recording(found["prepare"], tuple(found["cycle"]))


def record(database: Database, **options: object) -> Recording:
    """Record the statements of a worker with these endpoint options."""
    database.fill(MESSAGES)
    # PostgreSQL reports every statement as a notice to its session; SQLite has no notices.
    environment = database.environment(QUEUE, **options) | {"PGOPTIONS": "-c log_statement=all -c client_min_messages=log"}
    return recording_of(json.dumps(run_child("benchmarks.recording", environment)))


def cycle_of(sent: list[str]) -> Recording:
    """The most frequent strings between two receives, and the PREPARE of the receive."""
    cycles: list[tuple[str, ...]] = []
    current: list[str] = []
    for text in (_EXECUTE.sub(rf"\1\2({LOWEST}", each) for each in sent):
        if is_receive(text):
            cycles.append(tuple(current))
            current = [text]
        elif current:
            current.append(text)
    known = Counter(cycle for cycle in cycles if cycle)
    if not known:
        raise RuntimeError(f"the worker sent no receive that is known as one: {sent[:20]}")
    cycle = known.most_common(1)[0][0]
    name = _EXECUTE.search(cycle[0].replace(LOWEST, "0"))
    prepares = [text for text in sent if name and (found := _PREPARE.search(text)) and found.group(1) == name.group(2)]
    return Recording(prepares[-1] if prepares else "", cycle)


def is_receive(text: str) -> bool:
    """Whether a statement receives the next message of the measured queue."""
    return "EXECUTE " in text or ("DELETE FROM" in text and "RETURNING" in text and "PREPARE" not in text)


def _listen(sent: dict[int, list[str]]) -> None:
    """Record the statements of every new connection by thread."""
    from django.db.backends.signals import connection_created  # noqa: PLC0415 - reads settings

    def keep(text: str) -> None:
        sent[threading.get_ident()].append(text)

    def notice(diagnostic: Any) -> None:
        text = diagnostic.message_primary or ""
        if text.startswith(_STATEMENT):
            keep(text.removeprefix(_STATEMENT))
        elif text.startswith("execute "):
            keep(text)

    def created(connection: Any, **_: object) -> None:
        if connection.vendor == "sqlite":
            connection.connection.set_trace_callback(keep)
        else:
            connection.connection.add_notice_handler(notice)

    connection_created.connect(created, weak=False)


def main() -> None:
    django.setup()
    # Models can be imported only now.
    from sqlqueue_app.conf import get_settings  # noqa: PLC0415
    from sqlqueue_app.receiving.stopping import StopSignal  # noqa: PLC0415
    from sqlqueue_app.worker.run import RunOptions, run_worker  # noqa: PLC0415

    sent: dict[int, list[str]] = defaultdict(list)
    _listen(sent)
    run_worker(get_settings(), RunOptions(max_concurrency=1, until_empty=True), StopSignal())
    # The thread of the measured queue; that of the callback queue prepares the same statement for another table.
    ours = [texts for texts in sent.values() if any(_FROM_QUEUE.search(text) for text in texts)]
    longest = max(ours, key=lambda texts: sum(map(is_receive, texts)), default=[])
    print(json.dumps(asdict(cycle_of(longest))))


if __name__ == "__main__":
    main()
