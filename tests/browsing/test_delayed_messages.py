"""Delayed messages one by one: listed in pages, delivered now exactly once, cancelled."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connections

from sqlqueue_app.browsing.delayed_messages import (
    DelayKind,
    cancel_delayed,
    deliver_now,
    plan_deliveries,
    read_delayed_message,
    read_delayed_page,
)
from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.headers import read_headers
from sqlqueue_app.messages.times import parse_time
from sqlqueue_app.receiving.delayed import due_messages_of
from sqlqueue_app.status.delayed import KnownDelayed, known_delayed_tables
from sqlqueue_app.tables.delayed import DelayedPosition, key_of, position_of
from tests.support.databases import QueueDatabase
from tests.support.delayed_rows import FORWARD, HOUR, delayed, put, put_text
from tests.support.filling import install, table
from tests.support.sqlserver import needs
from tests.support.waiting import join_all

SECOND = timedelta(seconds=1)


def sales() -> KnownDelayed:
    return next(each for each in known_delayed_tables(get_settings()) if each.endpoint == "Sales")


def waiting(database: QueueDatabase) -> int:
    return delayed(database).count(100_000)[0]


def headers_in(database: QueueDatabase, queue: str = "Sales") -> list[dict[str, str | None]]:
    return [read_headers(row.headers) for row in table(database, queue).peek(10_000)]


def test_pages_are_ordered_by_due_time_and_include_ties(queue_database: QueueDatabase) -> None:
    needs(queue_database.vendor, "TOP WITH TIES")
    install(queue_database)
    same = datetime(2030, 1, 1, tzinfo=UTC)
    for _ in range(7):
        put_text(queue_database, "{}", same)
    later = put_text(queue_database, "{}", same + SECOND)
    first = put_text(queue_database, "{}", same - SECOND)
    seen: list[str] = []
    after: DelayedPosition | None = None
    for _ in range(9):
        page = read_delayed_page(delayed(queue_database), 2, after=after)
        seen += [each.key for each in page.messages]
        if page.next is None:
            break
        after = position_of(delayed(queue_database), page.next.due, page.next.key)
        assert after == page.next
    assert len(seen) == len(set(seen)) == 9
    assert (seen[0], seen[-1]) == (first, later)


def test_headers_determine_the_kind_of_a_delayed_message(queue_database: QueueDatabase) -> None:
    needs(queue_database.vendor, "TOP WITH TIES")
    install(queue_database)
    put(queue_database, HOUR, to="Billing@x")
    put(queue_database, 2 * HOUR, **{"NServiceBus.IsSagaTimeoutMessage": "True"})
    put(queue_database, 3 * HOUR, **{"NServiceBus.IsSagaTimeoutMessage": "True", "NServiceBus.Retries": "1"})
    put_text(queue_database, "no json", datetime.now(UTC) + 4 * HOUR)
    found = read_delayed_page(delayed(queue_database), 10).messages
    assert [each.kind for each in found] == [DelayKind.DEFERRED, DelayKind.TIMEOUT, DelayKind.RETRY, None]
    assert [each.destination for each in found] == ["Billing@x", "Sales", "Sales", ""]
    assert 3500 < (found[0].row.seconds or 0) <= 3600
    assert found[0].message.message_type == "Sales.Remind"
    assert found[3].message.unreadable
    one = read_delayed_message(delayed(queue_database), found[0].key)
    assert one is not None
    assert '"n": 1' in one[1].body.text


def test_message_is_delivered_early(queue_database: QueueDatabase) -> None:
    needs(queue_database.vendor, "TOP WITH TIES")
    install(queue_database)
    key, other = put(queue_database, body={"n": 7}), put(queue_database, to=None)
    late = put(queue_database, -HOUR, to="Sales.Priority")
    done = deliver_now(get_settings(), sales(), [key, late, key])
    assert (done.done, done.gone, done.refused) == (2, 0, ())
    (row,) = table(queue_database, "Sales").peek(10)
    headers = read_headers(row.headers)
    assert row.body == b'{"n": 7}'
    assert FORWARD not in headers
    # Measurements need a DeliverAt that is not in the future; a late message keeps its own.
    assert abs((parse_time(headers["NServiceBus.DeliverAt"] or "") - datetime.now(UTC)).total_seconds()) < 60
    (priority,) = headers_in(queue_database, "Sales.Priority")
    assert (datetime.now(UTC) - parse_time(priority["NServiceBus.DeliverAt"] or "")).total_seconds() > 3000
    assert waiting(queue_database) == 1
    assert deliver_now(get_settings(), sales(), [key, other]).done == 1, "without a destination it is delivered to its own endpoint"
    assert len(table(queue_database, "Sales").peek(10)) == 2


def test_undeliverable_message_stays(queue_database: QueueDatabase) -> None:
    needs(queue_database.vendor, "TOP WITH TIES")
    install(queue_database)
    lost, odd, good = put(queue_database, to="Nowhere"), put_text(queue_database, "odd", datetime.now(UTC)), put(queue_database)
    bound = {each.row.key: each for each in plan_deliveries(get_settings(), sales(), [lost, odd, good])}
    assert "Nowhere" in bound[lost].refusal
    assert bound[odd].refusal
    done = deliver_now(get_settings(), sales(), [lost, odd, good])
    assert (done.done, done.gone, {each.row.key for each in done.refused}) == (1, 0, {lost, odd})
    assert waiting(queue_database) == 2
    assert table(queue_database, "error").depth().waiting == 0


def test_cancelled_messages_are_deleted(queue_database: QueueDatabase) -> None:
    needs(queue_database.vendor, "TOP WITH TIES")
    install(queue_database)
    keys = [put(queue_database) for _ in range(3)]
    assert cancel_delayed(delayed(queue_database), keys[:2]) == 2
    assert cancel_delayed(delayed(queue_database), keys) == 1
    assert waiting(queue_database) == table(queue_database, "Sales").depth().waiting == 0


def test_competing_workers_and_operators_deliver_each_message_once(queue_database: QueueDatabase) -> None:
    needs(queue_database.vendor, "TOP WITH TIES")
    install(queue_database)
    keys = [put(queue_database, -SECOND, body={"n": number}) for number in range(120)]
    (mover,) = [each for each in due_messages_of(get_settings()) if each.endpoint == "Sales"]
    begin = threading.Barrier(4)
    failed: list[BaseException] = []

    def work(act: object) -> None:
        try:
            begin.wait(60)
            while waiting(queue_database):
                act()  # type: ignore[operator]
        except BaseException as error:
            failed.append(error)
            raise
        finally:
            connections.close_all()

    def deliver() -> None:
        left = [each.key for each in read_delayed_page(delayed(queue_database), 10).messages]
        deliver_now(get_settings(), sales(), left)

    threads = [threading.Thread(target=work, args=(act,)) for act in (deliver, deliver, deliver, mover.move_batch)]
    for thread in threads:
        thread.start()
    join_all(threads)
    assert failed == []
    bodies = [row.body for row in table(queue_database, "Sales").peek(1_000)]
    assert len(bodies) == len(set(bodies)) == len(keys)


@pytest.mark.parametrize(
    "text", ["", "x", "-1", "1e3", "٣", "9" * 30, "1 or 1=1", "'", "\0", "zzzzzzzz-0000-0000-0000-000000000001"]
)
def test_invalid_key_is_rejected(queue_database: QueueDatabase, text: str) -> None:
    install(queue_database)
    assert key_of(delayed(queue_database), text) is None
    assert position_of(delayed(queue_database), "2030-01-01T00:00:00", text) is None


@pytest.mark.parametrize(
    "due", ["", "x", "2026-W01", "2026-99-99", "0001-01-01", "infinity", "-infinity", "nan", "2026-01-01T00:00+05:00", "'", "\0"]
)
def test_any_text_is_accepted_as_a_position(queue_database: QueueDatabase, due: str) -> None:
    needs(queue_database.vendor, "TOP WITH TIES")
    install(queue_database)
    put(queue_database)
    key = "3c3c90ba-3dda-41bb-b5ab-460449a8f80e" if queue_database.vendor == "postgresql" else "1"
    place = position_of(delayed(queue_database), due, key)
    read_delayed_page(delayed(queue_database), 2, after=place)


def test_infinite_due_time_is_listed_last(postgresql_database: QueueDatabase) -> None:
    install(postgresql_database)
    put(postgresql_database)
    with postgresql_database.connection.cursor() as cursor:
        qualified = delayed(postgresql_database).qualified
        cursor.execute(f"INSERT INTO {qualified} (headers, body, due) SELECT '{{}}', NULL, 'infinity' FROM generate_series(1, 3)")
        cursor.execute("SET datestyle = 'German'")
    page = read_delayed_page(delayed(postgresql_database), 2)
    assert [(each.row.due_text[:2], each.row.due is None) for each in page.messages] == [("20", False), ("in", True)]
    assert page.next is not None
    place = position_of(delayed(postgresql_database), page.next.due, page.next.key)
    rest = read_delayed_page(delayed(postgresql_database), 5, after=place)
    assert [each.row.seconds for each in rest.messages] == [None, None]


def test_list_uses_the_index(postgresql_database: QueueDatabase) -> None:
    install(postgresql_database)
    qualified = delayed(postgresql_database).qualified
    with postgresql_database.connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {qualified} (headers, body, due) "
            "SELECT '{}', NULL, now() + n * interval '1 s' FROM generate_series(1, 5000) n"
        )
        cursor.execute(f"ANALYZE {qualified}")
        first = read_delayed_page(delayed(postgresql_database), 10)
        assert first.next is not None
        statement = delayed(postgresql_database).dialect.statement("list_delayed_after", table=qualified)
        bound = statement.bind({"limit": 10, "due": first.next.due, "place": first.next.key})
        cursor.execute(f"EXPLAIN {statement.sql}", bound)
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "Seq Scan" not in plan, plan
