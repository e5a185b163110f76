"""Each part of the benchmarks runs at a small scale and returns measurements; their values are not checked."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import (
    affinity,
    backlog,
    coroutines,
    delayed,
    hooks,
    keys,
    limit,
    memory,
    processes,
    receive,
    recording,
    run,
    sagas,
    sending,
    several,
    stages,
)
from benchmarks.databases import PostgreSQL, SQLite
from benchmarks.report import machine
from benchmarks.series import Kind, Measured, Plan, Section, take_turns
from tests.support.databases import ROOT


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSQL]:
    database = PostgreSQL(durable=False)
    yield database
    database.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SQLite]:
    database = SQLite(tmp_path_factory.mktemp("bench"))
    yield database
    database.close()


def measured_once(plan: Plan, *keys: str) -> Section:
    """Run one round of some kinds, each in its own process; every measurable kind has one value above 0."""
    kinds = [kind for kind in plan.kinds if kind.key in keys]
    assert len(kinds) == len(keys)
    (section,) = take_turns([replace(plan, kinds=kinds)], 1)
    for kind, series in zip(kinds, section.series, strict=True):
        assert [value > 0 for value in series.values] == ([] if kind.measure is None else [True]), series
        assert series.values or series.note
    return section


def test_receiving_is_compared_with_the_limit_and_plain_loops(server: PostgreSQL) -> None:
    plan = receive.plan(server, messages=160)
    section = measured_once(plan, "plain.8", "pgconn.8", "worker.8.1", "limit.8.1", "worker.8.auto", "limit.8.50")

    assert [kind.key for kind in plan.kinds] == [
        "limit.1.1", "plain.1", "worker.1.1",
        "plain.8", "pgconn.8", "worker.8.1", "limit.8.1", "worker.8.auto", "worker.8.50", "limit.8.50",
        "worker.1.50", "worker.1.auto",
    ]  # fmt: skip
    assert 1 <= int(str(section.facts["round trips for each message"])) <= 2


def test_receiving_is_measured_on_sqlite(file: SQLite) -> None:
    plan = receive.plan(file, messages=40)
    measured_once(plan, "plain.8", "worker.8.1")

    assert {"plain.1", "worker.1.1", "worker.8.50", "worker.8.auto"} < {kind.key for kind in plan.kinds}
    assert file.is_empty()


def test_limit_without_pgbench_is_a_libpq_loop(server: PostgreSQL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit, "find_pgbench", lambda _: None)
    section = measured_once(receive.plan(server, messages=100), "limit.8.1", "limit.8.50")

    assert all(series.name.startswith("limit: libpq loop") and series.note == limit.MISSING for series in section.series)


def test_configured_pgbench_must_run(server: PostgreSQL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(limit.VARIABLE, "/nowhere/pgbench")

    with pytest.raises(RuntimeError, match="names '/nowhere/pgbench', which does not run"):
        limit.find_pgbench(server.programs)


def test_plain_loops_run_the_statements_of_the_worker(server: PostgreSQL, file: SQLite) -> None:
    on_server, on_file = recording.record(server), recording.record(file)

    assert on_server.one_trip.count("COMMIT") == on_server.one_trip.count("EXECUTE") == 1
    assert on_server.one_trip.index("COMMIT") < on_server.one_trip.index(recording.LOWEST)
    assert on_server.prepared_statement.startswith("DELETE FROM")
    assert recording.record(server, BATCH_SIZE=50).prepared_statement.count("LIMIT 50") == 1
    assert [text for text in on_file.cycle if recording.is_receive(text)] == [on_file.cycle[0]]
    assert {"BEGIN IMMEDIATE", "COMMIT"} <= set(on_file.cycle)


def test_unknown_receive_statement_is_refused() -> None:
    with pytest.raises(RuntimeError, match="no receive that is known as one"):
        recording.cycle_of(["SELECT 1", "COMMIT"])


def test_deep_queues_and_dead_rows_are_measured(server: PostgreSQL) -> None:
    plan = backlog.plan(server, messages=100, depths=(300,), dead_rows=500)
    measured_once(plan, "depth.300", "dead.some")

    assert [kind.key for kind in plan.kinds] == ["depth.300", "dead.none", "dead.some"]
    # more messages may have been in progress at the stop
    assert 300 - 8 <= server.depth("Bench300") <= 300
    assert server.depth() == 0


def test_one_and_two_processes_are_measured(server: PostgreSQL) -> None:
    plan = processes.plan(server, messages=600)
    measured_once(plan, "processes.2")

    assert [kind.key for kind in plan.kinds] == ["processes.1", "processes.2"]


def test_second_database_is_compared_with_one(server: PostgreSQL) -> None:
    plan = several.plan(server, messages=100)
    measured_once(plan, "own.8", "both.8", "apart.8")

    assert [kind.key for kind in plan.kinds] == [f"{way}.{threads}" for threads in (1, 8) for way in ("own", "both", "apart")]


def test_sagas_are_compared_with_plain_handlers(server: PostgreSQL) -> None:
    plan = sagas.plan(server, messages=100)
    measured_once(plan, "nothing.8", "hand.8", "continues.8", "starts.8")

    ways = ("nothing", "hand", "continues", "starts")
    assert [kind.key for kind in plan.kinds] == [f"{way}.{threads}" for threads in (1, 8) for way in ways]


def test_hooks_are_compared_with_nothing(server: PostgreSQL) -> None:
    plan = hooks.plan(server, messages=100)
    measured_once(plan, "plain", "handled", "rate", "sends", "sent", "middleware")


def test_coroutines_are_compared_with_functions(server: PostgreSQL) -> None:
    measured_once(coroutines.plan(server, messages=100), "note", "note_async", "wait", "wait_async")


def test_handlers_with_keys_are_compared_with_one_without(server: PostgreSQL) -> None:
    plan = keys.plan(server, count_messages=120, keys=(1, 50))
    measured_once(plan, "keys.1.1", "keys.8.0", "keys.8.50")

    assert [kind.key for kind in plan.kinds] == [f"keys.{threads}.{each}" for threads in (1, 8) for each in (0, 1, 50)]


def test_default_affinity_is_compared_with_bound_and_never_bound(server: PostgreSQL) -> None:
    plan = affinity.plan(server, messages=200)
    measured_once(plan, "plain.8.one", "worker.8", "worker.8.any", "worker.8.bound", "worker.8.auto", "worker.8.waits")

    assert [kind.key for kind in plan.kinds] == [
        "limit.8.1", "plain.8", "plain.8.one", "worker.2x4", "worker.2x4.any",
        "worker.8.bound", "worker.8", "worker.8.any", "worker.8.auto", "worker.8.auto.any",
        "worker.8.computes", "worker.8.computes.any", "worker.8.hashes", "worker.8.hashes.any",
        "worker.8.waits", "worker.8.waits.any",
    ]  # fmt: skip


def test_memory_of_the_worker_command_is_measured(server: PostgreSQL) -> None:
    section = memory.measure(server, messages=40, samples=4, log_line=lambda _: None)

    last, peak, _ = section.series
    # a Python process with Django is never smaller
    assert 20 < last.values[0] <= peak.values[0]
    assert section.facts["messages"] == 40


def test_sending_is_measured_on_both_databases(server: PostgreSQL, file: SQLite) -> None:
    measured_once(sending.plan(server, messages=60), "send.single", "send.unique", "send.many")
    measured_once(sending.plan(file, messages=60), "send.many")


def test_moving_due_messages_is_measured_on_both_databases(server: PostgreSQL, file: SQLite) -> None:
    for database in (server, file):
        measured_once(delayed.plan(database, due=250, waiting=(0, 300)), "waiting.0", "waiting.300")
        assert database.depth() > 0


def test_time_of_a_message_is_split_into_stages(server: PostgreSQL) -> None:
    section = stages.measure(server, messages=60, rounds=1, log_line=lambda _: None)

    whole, *parts = section.series
    assert whole.values[0] > 0
    # every stage is reached: a timer around a function that is no longer called would read 0
    assert all(series.values[0] > 0 for series in parts)


def test_kinds_are_measured_in_turn() -> None:
    order: list[str] = []

    def kind(key: str) -> Kind:
        def measure() -> Measured:
            order.append(key)
            return Measured(float(len(order)))

        return Kind(key, key, measure)

    plans = [Plan("p", "p", "one", [kind("a"), Kind("n", "n", None, note="why")]), Plan("p", "p", "two", [kind("b")])]
    one, two = take_turns(plans, 2)

    assert order == ["a", "b", "a", "b"]
    assert [series.values for series in (*one.series, *two.series)] == [[1.0, 3.0], [], [2.0, 4.0]]


@pytest.mark.parametrize(
    "arguments", [["--rounds", "0"], ["--part", "everything"], ["--messages", "many"], ["--messages", "99"], ["--depth", "0"]]
)
def test_wrong_option_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run.parse(arguments)

    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_run_writes_two_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = run.parse(["--part", "send", "--messages", "100", "--rounds", "1", "--results", str(tmp_path)])
    section = Section("send", "sending", "SQLite", [])

    text = run.write(options, [section], machine())

    written = {path.suffix: path for path in tmp_path.iterdir()}
    assert [path.stem.partition("-send")[1] for path in written.values()] == ["-send", "-send"]
    assert written[".md"].read_text(encoding="utf-8") == text
    assert json.loads(written[".json"].read_text(encoding="utf-8"))["sections"][0]["part"] == "send"
    assert "written to" in capsys.readouterr().err


def test_benchmark_starts_as_a_file() -> None:
    answer = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "run.py"), "--help"], capture_output=True, text=True, cwd="/", check=True
    )

    assert "--durability" in answer.stdout
