"""Rates, ratios, growth and goals, and their presentation in the report."""

from __future__ import annotations

import json

import pytest

from benchmarks.goals import verdicts
from benchmarks.measures import rate, resident_megabytes
from benchmarks.memory import growth
from benchmarks.messages import BODY_BYTES, HEADER_BYTES, body, stored_body, stored_headers
from benchmarks.report import as_json, describe, grid, machine, markdown
from benchmarks.series import Section, Series, ratio

DURABLE = "PostgreSQL, durable"


def section(part: str, *series: Series, database: str = DURABLE) -> Section:
    return Section(part, part, database, list(series))


def series(key: str, *values: float, unit: str = "messages/s") -> Series:
    return Series(key, key, unit, list(values))


def test_messages_have_the_documented_sizes() -> None:
    assert len(stored_body()) == BODY_BYTES
    assert json.loads(stored_body()) == body()
    assert HEADER_BYTES <= len(stored_headers()) <= HEADER_BYTES + 50


@pytest.mark.parametrize(("times", "expected"), [([], 0.0), ([1.0], 0.0), ([1.0, 1.0], 0.0), ([3.0, 1.0, 2.0], 1.0)])
def test_rate_is_measured_between_first_and_last_message(times: list[float], expected: float) -> None:
    assert rate(times) == expected


def test_rate_excludes_the_start() -> None:
    slow_start = [0.0, *(10.0 + number for number in range(1, 20))]

    assert rate(slow_start) == 1.0


def test_rate_of_processes_covers_all_messages() -> None:
    assert rate([1.0, 3.0, 5.0], [2.0, 4.0]) == 1.0
    # a process that was first scheduled at the end has handled one message
    assert rate([1.0, 2.0, 3.0], [3.5]) == 1.2


def test_unknown_process_has_no_resident_memory() -> None:
    assert resident_megabytes(2**22 + 1) == {}


def test_growth_compares_the_last_quarter_with_the_second() -> None:
    assert growth([10.0, 50.0, 60.0, 60.0, 60.0, 60.0, 63.0, 65.0]).megabytes == 64.0 - 60.0


def test_ratio_compares_values_of_the_same_round() -> None:
    mood = [1.0, 10.0, 0.1]

    assert ratio(series("a", *(2 * each for each in mood)), series("b", *mood)) == 2.0


def test_every_goal_has_a_row_without_measurements() -> None:
    found = verdicts([], DURABLE)

    assert len(found) == 20
    assert {each.met for each in found} == {None}
    assert {each.measured for each in found} == {"not measured"}


@pytest.mark.parametrize(
    ("part", "found", "goal", "met"),
    [
        ("receive", [series("worker.8.1", 9.0), series("plain.8", 10.0)], "plain driver loop", True),
        ("receive", [series("worker.8.1", 8.9), series("plain.8", 10.0)], "plain driver loop", False),
        ("receive", [series("worker.8.1", 6.0), series("limit.8.1", 10.0)], "batch 1: ≥ 0.6 of the limit", True),
        ("receive", [series("worker.8.auto", 39.0), series("limit.8.1", 10.0)], "batch auto, 8 threads", False),
        ("processes", [series("processes.1", 10.0), series("processes.2", 10.0)], "2 processes", True),
        ("affinity", [series("worker.8", 12.0), series("worker.8.any", 10.0)], "never bound", False),
        ("affinity", [series("worker.8", 5.4), series("limit.8.1", 10.0)], "defaults, 8 threads: ≥ 0.55 of the limit", False),
        ("affinity", [series("worker.8", 8.5), series("worker.8.bound", 10.0)], "≥ 0.85 of bound", True),
        ("affinity", [series("worker.8.bound", 6.0), series("limit.8.1", 10.0)], "bound from the start: ≥ 0.6", True),
        ("affinity", [series("worker.8.auto", 59.0), series("limit.8.1", 10.0)], "defaults, batch auto: ≥ 6", False),
        ("backlog", [series("depth.1000", 100.0), series("depth.1000000", 94.0)], "1,000,000 waiting", False),
        ("backlog", [series("dead.none", 10.0), series("dead.some", 9.0)], "dead rows", True),
        ("idle", [series("idle.p50", 9.9, unit="ms")], "idle, p50", True),
        ("idle", [series("idle.in_a_row", 10.0, unit="ms")], "one after the other, p50", False),
        ("idle", [series("idle.p99", 50.0, unit="ms")], "p99", False),
        ("idle", [series("idle.statements", 2.0, unit="statements/s")], "statements", True),
        ("memory", [series("memory.peak", 79.0, unit="MB")], "memory of a worker", True),
        ("memory", [series("memory.growth", 2.5, unit="MB")], "flat", False),
    ],
)
def test_goals_are_met_or_missed(part: str, found: list[Series], goal: str, met: bool) -> None:
    found_goals = verdicts([section(part, *found)], DURABLE)

    assert [each.met for each in found_goals if goal in each.goal] == [met]
    assert sum(each.met is not None for each in found_goals) == 1


def test_goal_applies_to_one_database() -> None:
    elsewhere = section("idle", series("idle.p50", 1.0), database="SQLite")

    assert all(each.met is None for each in verdicts([elsewhere], DURABLE))


def test_table_has_a_column_for_each_database() -> None:
    refused = Series("worker.8.auto", "worker, auto", "messages/s", note="not in effect yet")
    here = section("receive", Series("worker.8.1", "worker", "messages/s", [2000.0, 1000.0], [50.0, 60.0]), refused)
    there = section("receive", series("worker.8.1", 7.25), database="SQLite")

    lines = grid([here, there])

    assert [cell.strip() for cell in lines[0].split("|")[2:4]] == [DURABLE, "SQLite"]
    assert "1,500 (1,000–2,000) · 60" in lines[3]
    assert [cell.strip() for cell in lines[3].split("|")[3:4]] == ["7.2"]
    assert [cell.strip() for cell in lines[4].split("|")[1:4]] == ["worker, auto, messages/s", "n/a", ""]
    assert len({len(line) for line in lines}) == 1


def test_single_value_has_no_range() -> None:
    assert describe(series("a", 0.5)) == "0.5"


def test_report_names_the_machine_and_missed_goals() -> None:
    found = [section("receive", series("worker.8.1", 5.0), series("plain.8", 10.0), Series("x", "x", "MB", note="no reason"))]
    found_goals = verdicts(found, DURABLE)

    text = markdown(found, found_goals, machine())

    assert "- cores: " in text
    assert "- x: no reason" in text
    assert "0.50 (0.50–0.50)" in text
    assert "| NO " in text
    assert json.loads(json.dumps(as_json(found, found_goals, machine())))["goals"][0]["met"] is False
