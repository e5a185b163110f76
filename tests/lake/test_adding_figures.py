"""Rollups of batches add up in the app's own tables, at each resolution, to those of all messages."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from django.db import connections, models, transaction
from django.test.utils import CaptureQueriesContext

from sqlqueue_app.lake.sketches import to_json
from sqlqueue_app.models import (
    ConversationEdge,
    EndpointSeen,
    GroupFigures,
    MessageFigures,
    NotableMessage,
    QueueFigures,
    UsageDay,
    managed_alias,
)
from sqlqueue_app.pipeline import rollup_tables
from sqlqueue_app.pipeline.rollup_tables import add_rollups
from tests.support import spark_reference as reference
from tests.support.databases import QueueDatabase
from tests.support.filling import install
from tests.support.random_messages import TAKEN_AT, random_rows

AT = datetime(2026, 11, 22, 10, 20, 30, 400_000, tzinfo=UTC)
Rows = list[dict[str, Any]]
# SQLite's text ends at milliseconds; a datetime of SQL Server has 300 steps a second
_PRECISION = timedelta(milliseconds=2)


def of_batches(batches: int) -> tuple[list[dict[str, Rows]], dict[str, Rows]]:
    """The rollups of each batch and those of all messages."""
    given: dict[str, Any] = {"batch": "b", "taken_at": TAKEN_AT}
    messages = [reference.message(row, queue="audit", **given) for row in random_rows(21, 600)]
    failures = [reference.message(row, queue="error", **given, failed=True) for row in random_rows(22, 200, failed=True)]
    messages = [row for row in messages if not row["problem"] and in_reach(row)]
    failures = [row for row in failures if not row["problem"]]
    parts = [reference.figures(messages[start::batches], failures[start::batches]) for start in range(batches)]
    return parts, reference.figures(messages, failures)


def in_reach(row: Mapping[str, Any]) -> bool:
    """No float holds the microseconds of thousands of years."""
    return abs(row["critical_seconds"] or 0) < 1e9


def add(*batches: Mapping[str, Rows]) -> None:
    for batch in batches:
        with transaction.atomic(using=managed_alias()):
            add_rollups(managed_alias(), batch)


def stored(model: type[models.Model], *keys: str) -> dict[Any, dict[str, Any]]:
    rows = model._default_manager.values()
    return by_keys([{name: row[name] for name in row if name != "id"} for row in rows], *keys)


def by_keys(rows: Rows, *keys: str) -> dict[Any, dict[str, Any]]:
    found = {tuple(row[key] for key in keys): row for row in rows}
    assert len(found) == len(rows)
    return found


def without_case(rows: Iterable[Mapping[str, Any]], name: str) -> Rows:
    return [{**row, name: row[name].casefold()} for row in rows]


def rolled_up(rows: Rows, lengths: tuple[int, ...], *keys: str) -> dict[Any, dict[str, Any]]:
    """The rows at each resolution, summed in plain Python."""
    found: dict[Any, dict[str, Any]] = {}
    for row, length in ((row, length) for row in rows for length in lengths):
        moved = {**row, "seconds": length, "at": reference.cut(row["at"], length)}
        _plus(found.setdefault(tuple(moved[key] for key in keys), {}), moved, keys)
    for row in found.values():
        for name, value in row.items():
            if name.endswith("_sum"):
                row[name] = value / 1e6
            elif name.endswith("_sketch"):
                row[name] = to_json(value)
    return found


def _plus(row: dict[str, Any], more: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    for name, value in more.items():
        if name.endswith("_sketch"):
            sketch = row.setdefault(name, {})
            for bucket, count in value.items():
                sketch[bucket] = sketch.get(bucket, 0) + count
        elif name.endswith("_sum"):
            row[name] = row.get(name, 0) + round(value * 1e6)
        elif name in ("first_seen", "last_seen"):
            row[name] = {"first_seen": min, "last_seen": max}[name](row.get(name, value), value)
        elif name in (*keys, "classifier", "title"):
            row[name] = value
        elif name != "day":
            row[name] = row.get(name, 0) + value


def test_batches_add_up_at_each_length(queue_database: QueueDatabase) -> None:
    install(queue_database)
    batches, whole = of_batches(3)

    add(*batches)

    lengths = (60, 3_600, 86_400)
    keys = ("endpoint", "message_type", "seconds", "at")
    assert stored(MessageFigures, *keys) == rolled_up(whole["minutes"], lengths, *keys)
    edges = ("sender", "receiver", "message_type", "seconds", "at")
    found = stored(ConversationEdge, *edges)
    if queue_database.vendor == "sqlserver":
        # most of its collations are case-insensitive
        found = by_keys(without_case(found.values(), "sender"), *edges)
        whole["edges"] = without_case(whole["edges"], "sender")
    assert found == rolled_up(whole["edges"], lengths[1:], *edges)


def test_groups_queues_usage_and_endpoints_add_up(queue_database: QueueDatabase) -> None:
    install(queue_database)
    batches, whole = of_batches(3)

    add(*batches)

    groups = rolled_up(
        [{**row, "group_id": uuid.UUID(row["group_id"])} for row in whole["groups"]], (3_600, 86_400), "group_id", "seconds", "at"
    )
    found = stored(GroupFigures, "group_id", "seconds", "at")
    assert {key: (row["count"], row["title"]) for key, row in found.items()} == {
        key: (row["count"], row["title"]) for key, row in groups.items()
    }
    assert all(abs(found[key]["first_seen"] - row["first_seen"]) < _PRECISION for key, row in groups.items())
    for name, model, key in (("queues", QueueFigures, "queue"), ("usage", UsageDay, "endpoint")):
        assert stored(model, key, "day") == {(row[key], row["day"]): row for row in whole[name]}
    seen = stored(EndpointSeen, "endpoint", "machine", "host_id")
    assert sum(row["messages"] for row in seen.values()) == sum(row["messages"] for row in whole["endpoints"])
    assert {key[0] for key in seen} == {row["endpoint"] for row in whole["endpoints"]}


def test_host_of_an_instance_is_that_seen_last(queue_database: QueueDatabase) -> None:
    install(queue_database)
    seen = [
        {"endpoint": "Sales", "machine": "m1", "host_id": "1", "host": host, "first_seen": at, "last_seen": at, "messages": 1}
        for host, at in (("new", AT), ("old", AT - timedelta(hours=1)))
    ]

    add({"endpoints": seen}, {"endpoints": [{**seen[1], "host": "older"}]})

    (instance,) = EndpointSeen.objects.all()
    assert (instance.host, instance.messages) == ("new", 3)


def test_most_notable_messages_of_all_batches_are_kept(queue_database: QueueDatabase) -> None:
    install(queue_database)
    batches, whole = of_batches(4)

    add(*batches)

    found = stored(NotableMessage, "day", "kind", "rank")
    assert [row["rank"] for row in found.values()].count(1) == len({(row["day"], row["kind"]) for row in whole["notable"]})
    for row in whole["notable"]:
        other = found[row["day"], row["kind"], row["rank"]]
        assert (other["value"], other["message_id"]) == (row["value"], row["message_id"])


def test_names_are_cut_to_fit_their_column(queue_database: QueueDatabase) -> None:
    install(queue_database)
    long = "E" * 300
    day = {"day": AT.date(), "messages": 1, "failures": 0, "bytes": 3}

    add({"usage": [{"endpoint": f"{long}1", **day}, {"endpoint": f"{long}2", **day}, {"endpoint": "a\0b", **day}]})
    add({"usage": [{"endpoint": "a\0b", **day}]})

    found = dict(UsageDay.objects.values_list("endpoint", "messages"))
    assert found == {"E" * 255: 2, "a\ufffdb": 2}


def test_longest_names_fit_into_every_index(queue_database: QueueDatabase) -> None:
    install(queue_database)
    chance = random.Random(4)
    long = ["".join(chr(chance.randrange(0x10000, 0x30000)) for _ in range(400)) for _ in range(4)]
    critical = {"critical_count": 0, "critical_sum": 0.0, "critical_sketch": {}}
    edge = {"sender": long[0], "receiver": long[1], "message_type": long[2], "at": AT, "day": AT.date(), "count": 1, **critical}
    seen = {"endpoint": long[0], "machine": long[1], "host_id": long[2], "host": long[3], "day": AT.date(), "messages": 1}
    batch = {"edges": [edge], "endpoints": [{**seen, "first_seen": AT, "last_seen": AT}]}

    add(batch, batch)

    assert set(ConversationEdge.objects.values_list("count", flat=True)) == {2}
    assert EndpointSeen.objects.get().messages == 2


def test_rolled_back_batch_is_not_added(queue_database: QueueDatabase) -> None:
    install(queue_database)
    batches, _ = of_batches(2)
    add(batches[0])
    before = stored(MessageFigures, "endpoint", "message_type", "seconds", "at")

    with transaction.atomic(using=managed_alias()):
        add_rollups(managed_alias(), batches[1])
        transaction.set_rollback(True, using=managed_alias())

    assert stored(MessageFigures, "endpoint", "message_type", "seconds", "at") == before


def test_many_rows_take_few_statements(queue_database: QueueDatabase) -> None:
    install(queue_database)
    usage = [
        {"endpoint": f"E{number}", "day": date(2026, 1, 1) + timedelta(days=number), "messages": 1, "failures": 0, "bytes": 1}
        for number in range(1_200)
    ]
    add({"usage": usage})

    with CaptureQueriesContext(connections[managed_alias()]) as statements:
        add({"usage": usage})

    assert UsageDay.objects.filter(messages=2).count() == 1_200
    assert len([each for each in statements if "sqlqueue_app_usageday" in each["sql"]]) <= 12


def test_keys_equal_under_sql_server_collation_are_merged(queue_database: QueueDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    install(queue_database)
    monkeypatch.setattr(rollup_tables, "_folding", lambda _alias: rollup_tables._folded)
    row = {"day": AT.date(), "messages": 1, "failures": 0, "bytes": 3}

    add({"usage": [{"endpoint": "Sales", **row}]}, {"usage": [{"endpoint": "Sales", **row}, {"endpoint": "SALES", **row}]})

    assert list(UsageDay.objects.values_list("endpoint", "messages")) == [("Sales", 3)]


def test_keys_are_compared_as_in_the_database(queue_database: QueueDatabase) -> None:
    install(queue_database)
    names = ["Sales", "SALES", "Sales ", "\uff33ales", "Sales\u200b", "Sa\x01les", "\u3055", "\u30b5"]
    rows = [{"endpoint": name, "day": AT.date(), "messages": 1, "failures": 0, "bytes": 3} for name in names]

    add({"usage": rows[1:]}, {"usage": rows})

    found = dict(UsageDay.objects.values_list("endpoint", "messages"))
    assert found == (
        {"SALES": 11, "\u3055": 4} if queue_database.vendor == "sqlserver" else {"Sales": 1, **dict.fromkeys(names[1:], 2)}
    )
