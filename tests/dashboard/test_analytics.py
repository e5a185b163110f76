"""The pages of the pipeline's rollups: over time and by kind, groups, map, usage, and how to start without any."""

from __future__ import annotations

import json
import re
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from sqlqueue_app.browsing import analytics
from sqlqueue_app.browsing.analytics import Rollup, RollupQuery, RollupResult, resample
from sqlqueue_app.dashboard.analytics import MAX_NODES, MAX_POINTS, endpoint_map, rollup_charts
from sqlqueue_app.lake.sketches import sketch_of, to_json
from sqlqueue_app.models import (
    ConversationEdge,
    EndpointSeen,
    GroupFigures,
    LakeBatch,
    MessageFigures,
    NotableMessage,
    QueueFigures,
    UsageDay,
)
from tests.support.databases import QueueDatabase
from tests.support.filling import HOSTILE, install
from tests.support.pages import Markup, client_of, page_at

BASE = "/admin/sqlqueue_app/analytics/"
PARTS = ("", "groups/", "map/", "usage/", "notable/")


def page(address: str = "", kind: str = "viewer") -> Markup:
    return page_at(BASE + address, kind)


def rows(address: str) -> list[dict[str, Any]]:
    part, _, query = address.partition("?")
    answer = client_of("superuser").get(f"{BASE}{part}?{query}&format=json")
    assert answer.status_code == 200
    found: list[dict[str, Any]] = json.loads(b"".join(answer))
    return found


def begin(seconds: int, ago: timedelta = timedelta()) -> datetime:
    return datetime.fromtimestamp((datetime.now(UTC) - ago).timestamp() // seconds * seconds, UTC)


def figures(ago: timedelta, *, endpoint: str = "Sales", kind: str = "Shop.Order", critical: list[float], **values: Any) -> None:
    """Store the rollups of these messages at all resolutions, as a batch does."""
    sketch = to_json(sketch_of(critical))
    known = {"processed": len(critical), "critical_count": len(critical), "critical_sum": sum(critical), "critical_sketch": sketch}
    known |= {"processing_count": len(critical), "processing_sum": 0.5 * len(critical), **values}
    known |= {
        "processing_sketch": to_json(sketch_of([0.5] * len(critical))),
        "critical_negative": sum(each < 0 for each in critical),
    }
    for seconds in (60, 3_600, 86_400):
        MessageFigures.objects.create(endpoint=endpoint, message_type=kind, seconds=seconds, at=begin(seconds, ago), **known)


@pytest.fixture
def computed(queue_database: QueueDatabase) -> QueueDatabase:
    install(queue_database)
    now = datetime.now(UTC)
    LakeBatch.objects.create(id=uuid.uuid4(), kind="audit", lake_id=uuid.uuid4(), committed_at=now)
    figures(timedelta(minutes=5), critical=[1.0, 2.0, 10.0], failed=1)
    figures(timedelta(days=40), critical=[100.0] * 7)
    figures(timedelta(minutes=5), endpoint=HOSTILE, kind="Shop.Bill", critical=[-1.0])
    for seconds in (3_600, 86_400):
        of_time: dict[str, Any] = {"seconds": seconds, "at": begin(seconds), "first_seen": now, "last_seen": now}
        for name, count in (("Exception Type and Stack Trace", 3), ("Message Type", 2)):
            GroupFigures.objects.create(group_id=uuid.uuid4(), classifier=name, title=f"{name} {HOSTILE}", count=count, **of_time)
        for sender, receiver, count in (("Web", "Sales", 5), ("Sales", "Sales", 1), ("", HOSTILE, 2)):
            ConversationEdge.objects.create(
                sender=sender, receiver=receiver, message_type="Shop.Order", seconds=seconds, at=begin(seconds), count=count,
                critical_count=1, critical_sum=2.0, critical_sketch=to_json(sketch_of([2.0])),
            )  # fmt: skip
    UsageDay.objects.create(endpoint="Sales", day=now.date(), messages=12, failures=3, bytes=4_096)
    QueueFigures.objects.create(queue="audit", day=now.date(), taken=9, unreadable=2, bytes=100)
    EndpointSeen.objects.create(endpoint="Sales", machine="here", first_seen=now, last_seen=now, messages=12)
    shared: dict[str, Any] = {"day": now.date(), "rank": 1, "endpoint": "Sales", "message_type": "Shop.Order", "at": now}
    NotableMessage.objects.create(kind="slowest", value=7.5, message_id="slow one", conversation_id="c/1", **shared)
    NotableMessage.objects.create(kind="largest", value=2_048, message_id="large one", **shared)
    return queue_database


def test_pages_without_rollups_show_how_to_start(queue_database: QueueDatabase) -> None:
    for part in PARTS:
        text = page(part).text()
        assert "The archive is not configured." in text
        assert "pip install 'django-sqlqueue[spark]' python manage.py run_sqlqueue_pipeline --once" in text
        assert rows(part) == []


@pytest.mark.parametrize("part", PARTS)
def test_page_title_equals_its_link(computed: QueueDatabase, part: str) -> None:
    html = client_of("viewer").get(BASE + part).content.decode().partition('<div id="content"')[2]
    (title,) = re.findall(r"<h1>(.*?)</h1>", html)
    assert re.findall(r'aria-current="page">(.*?)</a>', html) == [title]
    assert title in {"": ["Throughput and latency"], "map/": ["Map"], "usage/": ["Usage"]}.get(part, [title])


def test_messages_are_shown_by_endpoint_and_type(computed: QueueDatabase) -> None:
    found = page()
    text = found.text()
    assert "Processed 4 Failed 1 Failure rate 20.0 % Critical time mean 3.0 s p50" in text
    assert "Negative critical times" in text
    assert "Data up to" in text
    assert "Processed and failed (per second)" in text
    assert len(found.find("figure", **{"class": "sq-chart"})) == 4
    assert "Shop.Order Sales 3 1 25.0 % 4.3 s" in text
    assert "−1.0 s 1 negative" in text
    assert "Shop.Bill" in page("?type=Shop.Bill").text()
    assert "Shop.Order Sales" not in page("?type=Shop.Bill").text()
    assert "Processed 3" in page("?endpoint=Sales").text()
    assert "Processed 11" in page("?period=90d").text()
    assert "No figures in this period." in page("?endpoint=Nobody").text()


def test_times_of_a_table_share_the_unit_that_shows_them(computed: QueueDatabase) -> None:
    MessageFigures.objects.all().delete()
    figures(timedelta(minutes=5), critical=[0.0025])
    assert "Critical time mean 2.5 ms p50 2.5 ms" in page().text()
    assert "Processing time mean 500 ms" in page().text()
    figures(timedelta(minutes=5), kind="Shop.Bill", critical=[30.0])
    text = page().text()
    assert re.search(r"Shop\.Order Sales 1 0 0 % 0\.00\d s", text), text
    assert "Shop.Bill Sales 1 0 0 % 30.0 s" in text


def test_form_shows_the_present_filters(computed: QueueDatabase) -> None:
    found = page("?endpoint=Sales&type=Shop.*&period=7d")
    shown = {name: found.find("input", name=name)[0].get("value") for name in ("endpoint", "type", "period")}
    assert shown == {"endpoint": "Sales", "type": "Shop.*", "period": "7d"}


def test_quantiles_come_from_the_merged_sketches(computed: QueueDatabase) -> None:
    (order, bill) = sorted(rows("?period=1d"), key=lambda each: str(each["message_type"]), reverse=True)
    assert (order["processed"], order["failed"], order["critical_negative"]) == (3, 1, 0)
    assert order["critical_p99"] == pytest.approx(10.0, rel=0.025)
    assert (bill["critical_p50"], bill["critical_mean"], bill["critical_negative"]) == (0.0, -1.0, 1)
    assert {each["seconds"] for each in rows("?period=1y")} == {86_400}


def test_too_many_sketches_show_a_hint(computed: QueueDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "choose an endpoint" not in page("?period=1d").text()
    monkeypatch.setattr(analytics, "MAX_SKETCHES", 0)
    text = page("?period=1d").text()
    assert "choose an endpoint" in text
    assert "Shop.Order Sales 3 1 25.0 % 4.3 s – – –" in text


def test_groups_are_shown_by_classifier(computed: QueueDatabase) -> None:
    assert f"Exception Type and Stack Trace {HOSTILE} 3" in page("groups/").text()
    assert f"Message Type {HOSTILE} 2" in page("groups/?by=type&period=30d").text()
    (group,) = rows("groups/?by=type")
    assert (group["classifier"], group["failures"]) == ("Message Type", 2)
    assert any(f"/failedmessage/group/{group['group']}/" in link for link in page("groups/?by=type").links)


def test_map_shows_endpoints_and_edges(computed: QueueDatabase) -> None:
    found = page("map/")
    assert "Web Sales 5" in found.text()
    assert len(found.find("circle")) == 4
    assert [each["messages"] for each in rows("map/")] == [5, 2, 1]
    assert [each["sender"] for each in rows("map/?endpoint=Web")] == ["Web"]
    assert rows("map/")[0]["critical_p95"] == pytest.approx(2.0, rel=0.025)


@pytest.mark.parametrize("part", ["map/", "groups/"])
def test_pages_without_minutes_state_that_they_count_hours(computed: QueueDatabase, part: str) -> None:
    assert "Counted in whole hours (UTC)." in page(f"{part}?period=1d").text()
    assert "Counted in whole hours" not in page(f"{part}?period=7d").text()


def test_usage_and_notable_messages_are_shown(computed: QueueDatabase) -> None:
    text = page("usage/?period=7d").text()
    assert "Sales 12 3 4.0 KiB" in text
    assert "audit 9 0 0 2 100 bytes" in text
    assert rows("usage/") == [{"endpoint": "Sales", "messages": 12, "failures": 3, "bytes": 4_096}]
    found = page("notable/")
    assert "slow one 7.5 s" in found.text()
    assert "large one 2.0 KiB" in found.text()
    assert any("/conversation/" in link for link in found.links)
    assert len(rows("notable/?type=Shop.Order")) == 2
    assert rows("notable/?type=None") == []


@pytest.mark.parametrize("part", PARTS)
def test_page_takes_few_statements(computed: QueueDatabase, part: str) -> None:
    client = client_of("viewer")
    with CaptureQueriesContext(connection) as queries:
        assert client.get(f"{BASE}{part}?period=1y").status_code == 200
    assert len(queries) <= 15


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(
    "query", ["period=%27&endpoint=%00x&type=%ff&by=[]", "endpoint=" + "x" * 5_000, "period=1y&by=none&type=%F0%9F"]
)
def test_any_query_string_is_answered(computed: QueueDatabase, part: str, query: str) -> None:
    client = client_of("superuser")
    assert client.get(f"{BASE}{part}?{query}").status_code == 200
    assert client.get(f"{BASE}{part}?{query}&format=csv").status_code == 200


def test_files_contain_all_rows(queue_database: QueueDatabase) -> None:
    install(queue_database)
    now = datetime.now(UTC)
    for number in range(110):
        ConversationEdge.objects.create(sender=f"Web {number}", receiver="Sales", seconds=3_600, at=begin(3_600), count=1)
    for number in range(210):
        UsageDay.objects.create(endpoint=f"Sales {number}", day=now.date(), messages=1)
    for number in range(30):
        day = (now - timedelta(days=number % 2)).date()
        NotableMessage.objects.create(kind="slowest", day=day, rank=number, value=number, message_id=f"m {number}", at=now)

    assert len(rows("map/?")) == 110
    assert len(rows("usage/?")) == 210
    assert [each["message_id"] for each in rows("notable/?period=7d")] == [f"m {number}" for number in reversed(range(30))]


def test_pages_tell_what_they_leave_out(queue_database: QueueDatabase) -> None:
    install(queue_database)
    now = datetime.now(UTC)
    LakeBatch.objects.create(id=uuid.uuid4(), kind="audit", lake_id=uuid.uuid4(), committed_at=now)
    edge = {"receiver": "Sales", "seconds": 3_600, "at": begin(3_600), "count": 1}
    ConversationEdge.objects.bulk_create([ConversationEdge(sender=f"Web {number}", **edge) for number in range(101)])
    UsageDay.objects.bulk_create([UsageDay(endpoint=f"Sales {number}", day=now.date(), messages=1) for number in range(201)])
    seen = {"first_seen": now, "last_seen": now}
    EndpointSeen.objects.bulk_create([EndpointSeen(endpoint="Sales", machine=f"pod {number}", **seen) for number in range(201)])

    usage = page("usage/").text()

    assert "a file has all" in page("map/").text()
    assert "a file has all" in usage
    assert "At most 200 instances are listed: choose an endpoint to see its own." in usage
    usage = page("usage/?endpoint=Sales+1").text()
    assert "a file has all" not in usage
    assert "At most" not in usage
    assert "a file has all" not in page("map/?endpoint=Web+1").text()


def test_map_draws_a_limited_number_of_endpoints() -> None:
    drawn = endpoint_map([(f"from {number}", f"to {number}", 100 - number) for number in range(40)])
    assert len(drawn.nodes) == MAX_NODES
    assert len(drawn.arrows) == MAX_NODES // 2
    assert endpoint_map([]).nodes == []
    assert len({place for _name, place, *_label in drawn.nodes}) == MAX_NODES


def test_chart_of_a_day_has_a_limited_number_of_points() -> None:
    end = datetime(2026, 11, 22, 12, 0, 30, tzinfo=UTC)
    queries = RollupQuery.until(end, timedelta(days=1), 60)
    minutes = [queries.begin + timedelta(minutes=number) for number in range(1_440)]
    over_time = {at: Rollup(processed=6, failed=2, critical={number % 6: 1}) for number, at in enumerate(minutes)}
    read = RollupResult(queries, over_time, over_time, 60, {}, Rollup(), is_cut=False)

    wide = resample(over_time, queries.begin, timedelta(minutes=6))
    flow, critical, _processing, failing = rollup_charts(read)

    assert len(wide) == MAX_POINTS
    assert wide[queries.begin].processed == 36
    assert wide[queries.begin].critical == dict.fromkeys(range(6), 1)
    assert [flow.lines[0].path.count("L") + 1, critical.lines[0].path.count("L") + 1] == [MAX_POINTS, MAX_POINTS]
    assert "between 0.10/s and 0.11/s" in flow.lines[0].summary
    assert "25.0 %" in failing.lines[0].summary
    assert over_time[minutes[0]].processed == 6, "resampling must not change what was read"
    assert {text for _x, text in flow.x_axis} >= {"18:00", "00:00", "06:00"}


def test_chart_of_an_hour_has_every_minute() -> None:
    queries = RollupQuery.until(datetime(2026, 11, 22, 12, 0, tzinfo=UTC), timedelta(hours=1), 60)
    over_time = {queries.begin + timedelta(minutes=number): Rollup(processed=60) for number in range(60)}
    (flow, *_) = rollup_charts(RollupResult(queries, over_time, over_time, 60, {}, Rollup(), is_cut=False))
    assert flow.lines[0].path.count("L") + 1 == 60


@pytest.mark.parametrize(("last", "rate"), [("12:00", "1.0/s"), ("12:01", "0.33/s")])
def test_rate_of_the_last_step_ends_with_the_data(last: str, rate: str) -> None:
    """The page is shown minutes after the pipeline ran; the later minute comes from a worker whose clock is ahead."""
    until = datetime(2026, 11, 22, 12, 0, 20, tzinfo=UTC)
    queries = RollupQuery.until(until + timedelta(minutes=2), timedelta(hours=1), 60, counted_until=until)
    at = datetime.fromisoformat(f"2026-11-22 {last}+00:00")
    over_time = {at - timedelta(minutes=1): Rollup(processed=60), at: Rollup(processed=20)}
    (flow, *_) = rollup_charts(RollupResult(queries, over_time, {}, None, {}, Rollup(), is_cut=False))
    assert flow.lines[0].last == rate


def test_hourly_quantiles_are_drawn_at_their_hours() -> None:
    queries = RollupQuery.until(datetime(2026, 11, 22, 12, 7, 30, tzinfo=UTC), timedelta(days=1), 60)
    over_time = {queries.begin + timedelta(minutes=number): Rollup(processed=1) for number in range(1_440)}
    hours = {datetime(2026, 11, 21, 12, tzinfo=UTC) + timedelta(hours=number): Rollup(critical={number: 1}) for number in range(25)}
    (_flow, critical, *_) = rollup_charts(RollupResult(queries, over_time, hours, 3_600, {}, Rollup(), is_cut=False))
    assert [time for time, _values in reversed(critical.rows)][:3] == ["12:00", "13:00", "14:00"]
    assert critical.xs.startswith("0.0|")
