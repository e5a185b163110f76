"""The pages of delayed messages: tables, messages, immediate delivery, cancellation."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils.html import escape

from sqlqueue_app.conf import get_settings
from sqlqueue_app.models import OperatorAction
from sqlqueue_app.status.queues import address_book_of
from sqlqueue_app.tables.delayed import DelayedTable
from sqlqueue_app.tables.installation import delayed_address
from tests.support.databases import QueueDatabase
from tests.support.delayed_rows import HOUR, delayed, put, put_text
from tests.support.filling import HOSTILE, install, table
from tests.support.pages import Markup, client_of, page_at
from tests.support.sqlserver import needs

ADMIN = "/admin/sqlqueue_app/"
LIST = f"{ADMIN}delayedmessage/"
SALES = f"{LIST}Sales.Delayed/"
CONFIRMED = {"confirmed": "1"}


def page(address: str = LIST, kind: str = "viewer", status: int = 200) -> Markup:
    return page_at(address, kind, status)


def post(address: str, kind: str = "writer", **form: Any) -> tuple[int, str]:
    answer = client_of(kind).post(address, {**CONFIRMED, **form}, follow=True)
    return answer.status_code, Markup(answer.content.decode()).text()


def recorded() -> list[tuple[str, str, str, str, int]]:
    return [(each.user_name, each.action, each.target, each.result, each.count) for each in OperatorAction.objects.order_by("id")]


def waiting(database: QueueDatabase) -> int:
    return delayed(database).count(10_000)[0]


def test_tables_show_the_next_and_the_overdue_messages(queue_database: QueueDatabase) -> None:
    install(queue_database, ENDPOINTS={"Sales": {"CALLBACKS": False}, "Idle": {"CALLBACKS": False}})
    put(queue_database, timedelta(days=2, minutes=5))
    assert "Sales OK 1 0 in 2 d" in page().text()
    put(queue_database, -HOUR - timedelta(minutes=5, seconds=30))
    found = page()
    assert "Sales Overdue no worker moves them 2 1 overdue for 1 h 5 min" in found.text()
    assert "Idle OK 0 0 –" in found.text()
    assert found.inline == []
    assert SALES in found.links
    for other in ("queue/", "dashboard/"):
        assert SALES in page(ADMIN + other).links


def test_due_messages_are_overdue_only_after_a_minute(queue_database: QueueDatabase) -> None:
    install(queue_database, ENDPOINTS={"Sales": {"CALLBACKS": False}})
    put(queue_database, -timedelta(seconds=30))
    assert "Sales OK 1 0 due for" in page().text()
    assert page(SALES).find("span", **{"class": "sq-state sq-warning"}) == []
    put(queue_database, -timedelta(seconds=61))
    assert "Sales Overdue no worker moves them 2 2 overdue for 1 min" in page().text()
    assert len(page(SALES).find("span", **{"class": "sq-state sq-warning"})) == 1


def test_missing_table_is_reported(queue_database: QueueDatabase) -> None:
    needs(queue_database.vendor, "TOP WITH TIES")
    install(queue_database)
    queue_database.configure(ENDPOINTS={"Sales": {}, "New": {}})
    assert "New Missing" in page().text()
    assert "python manage.py sqlqueue_install" in page().text()
    assert "python manage.py sqlqueue_install" in page(f"{LIST}New.Delayed/", status=404).text()
    answer = client_of("writer").post(f"{LIST}New.Delayed/deliver/", {**CONFIRMED, "ids": "1"})
    assert answer.status_code == 409
    page(f"{LIST}Nobody.Delayed/", status=404)
    page(f"{LIST}Nobody.Delayed/deliver/", "writer", status=404)
    page(f"{LIST}Nobody.Delayed/deliver/", "viewer", status=403)


def test_tables_of_other_projects_are_listed(queue_database: QueueDatabase) -> None:
    install(queue_database, ENDPOINTS={"Sales": {}, "Foreign": {}})
    put(queue_database, endpoint="Foreign", to="Sales")
    queue_database.configure(ENDPOINTS={"Sales": {}})
    assert "Foreign not in the settings of this site OK 1 0" in page().text()
    (link,) = {link for link in page(f"{LIST}Foreign.Delayed/").links if link.startswith(f"{LIST}Foreign.Delayed/")}
    key = link.partition("?")[0].rstrip("/").rpartition("/")[2]
    status, text = post(f"{LIST}Foreign.Delayed/deliver/", ids=key)
    assert (status, "1 message was delivered." in text) == (200, True)
    assert table(queue_database, "Sales").depth().waiting == 1


def test_messages_of_a_table_are_listed(queue_database: QueueDatabase) -> None:
    install(queue_database)
    book = address_book_of(get_settings())
    priority = book.canonical(book.of_queue("Sales.Priority"))
    put(queue_database, timedelta(hours=3, minutes=1), to=priority, **{"NServiceBus.IsSagaTimeoutMessage": "True"})
    put(queue_database, -HOUR - timedelta(minutes=5, seconds=30), **{"NServiceBus.Retries": "1"})
    put_text(queue_database, "odd", datetime(2031, 1, 2, 3, 4, 5, tzinfo=UTC))
    found = page(SALES)
    text = found.text()
    assert "in 3 h" in text
    assert "timeout Sales.Priority" in text
    assert "overdue for 1 h 5 min" in text
    assert "delayed retry Sales" in text
    assert "2031-01-02 03:04:05 unknown Poison" in text
    assert found.inline == []
    assert len(found.find("input", type="checkbox")) == 3
    assert page(f"{LIST}Sales/").find("input", type="checkbox"), "the name of the endpoint works too"


def test_delivered_message_can_be_searched_for(queue_database: QueueDatabase) -> None:
    install(queue_database)
    put(queue_database, HOUR, **{"NServiceBus.MessageId": "a&b/1"})
    (link,) = {each for each in page(SALES).links if each.startswith(SALES) and "?id=" in each}
    page(link)
    key = link.partition("?")[0].rstrip("/").rpartition("/")[2]
    assert post(f"{SALES}deliver/", ids=key)[0] == 200
    assert "/admin/sqlqueue_app/search/?q=a%26b%2F1" in page(link, status=404).links


def test_all_pages_are_linked(queue_database: QueueDatabase) -> None:
    needs(queue_database.vendor, "TOP WITH TIES")
    install(queue_database)
    for number in range(53):
        delayed(queue_database).add("{}", b"", datetime(2030, 1, 1, tzinfo=UTC) + timedelta(seconds=number // 10))
    first = page(SALES)
    (link,) = [link for link in first.links if "after=" in link and "format" not in link]
    second = page(SALES + link)
    assert (len(first.find("input", type="checkbox")), len(second.find("input", type="checkbox"))) == (50, 3)
    keys = {each["value"] for each in (*first.find("input", type="checkbox"), *second.find("input", type="checkbox"))}
    assert len(keys) == 53
    assert "First page" in second.text()


def test_message_is_shown_in_full(queue_database: QueueDatabase) -> None:
    install(queue_database)
    key = put(queue_database, body={"secret": HOSTILE}, Tenant=HOSTILE)
    found = page(f"{SALES}{key}/", "writer")
    assert "deferred send" in found.text()
    assert '"secret"' in found.text()
    assert HOSTILE in found.text()
    assert found.inline == []
    assert "secret" not in page(f"{SALES}{key}/", "reader").text()
    body: Any = client_of("writer").get(f"{SALES}{key}/body/")
    assert json.loads(body.content) == {"secret": HOSTILE}
    assert client_of("reader").get(f"{SALES}{key}/body/").status_code == 403
    for gone in ("0", "x", "3c3c90ba-3dda-41bb-b5ab-460449a8f80e", "9" * 40):
        assert "delivered or cancelled" in page(f"{SALES}{gone}/", status=404).text()


def test_chosen_messages_are_delivered_and_recorded(queue_database: QueueDatabase) -> None:
    install(queue_database)
    keys = [put(queue_database) for _ in range(3)]
    lost = put(queue_database, to="Nowhere")
    asking = page(f"{SALES}deliver/?ids={keys[0]}&ids={keys[1]}&ids={lost}&ids=x", "writer")
    assert "Deliver 2 messages now" in asking.text()
    assert "Stays: the message is on its way to 'Nowhere'" in asking.text()
    assert waiting(queue_database) == 4, "the page only asks for confirmation"
    answer = client_of("writer").post(f"{SALES}deliver/", {**CONFIRMED, "ids": [*keys[:2], lost]}, follow=True)
    assert answer.status_code == 200
    text = escape("2 messages were delivered. 1 stays: the message is on its way to 'Nowhere'")
    assert f'<li class="warning">{text}' in answer.content.decode()
    assert table(queue_database, "Sales").depth().waiting == 2
    assert post(f"{SALES}deliver/", ids=lost)[0] == 409
    assert post(f"{SALES}deliver/", ids=keys[0])[0] == 409, "it was already delivered"
    assert post(f"{SALES}deliver/")[0] == 409, "no message is chosen"
    assert recorded() == [("writer", "deliver_now", "Sales.Delayed", "done", 2)]


def test_message_is_cancelled(queue_database: QueueDatabase) -> None:
    install(queue_database)
    key, other = put(queue_database), put(queue_database)
    (link,) = [link for link in page(f"{SALES}{key}/", "writer").links if "/cancel/" in link]
    assert "1" in page(link, "writer").text()
    assert post(link)[1].count("1 delayed message was cancelled.") == 1
    assert [waiting(queue_database), table(queue_database, "Sales").depth().waiting] == [1, 0]
    assert recorded() == [("writer", "cancel_delayed", f"Sales.Delayed #{key}", "done", 1)]
    assert post(f"{SALES}cancel/", "reader", ids=other)[0] == 403
    assert recorded()[1:] == [("reader", "cancel_delayed", f"Sales.Delayed #{other}", "denied", 0)]
    assert waiting(queue_database) == 1
    assert "You need the permission “Can delete messages”." in page(f"{SALES}{other}/").text()
    answer = client_of("writer").post(f"{SALES}cancel/", {**CONFIRMED, "ids": [key, other]}, follow=True)
    expected = '<li class="warning">1 delayed message was cancelled. 1 was no longer in the table.</li>'
    assert expected in answer.content.decode(), "one was perhaps delivered meanwhile"


def test_lists_are_exported(queue_database: QueueDatabase) -> None:
    needs(queue_database.vendor, "TOP WITH TIES")
    install(queue_database)
    for _ in range(60):
        delayed(queue_database).add('{"NServiceBus.MessageId": "=1+1"}', b"", datetime(2030, 1, 1, tzinfo=UTC))
    answer: Any = client_of("writer").get(f"{LIST}?format=json")
    (row,) = [each for each in json.loads(answer.getvalue()) if each["table"] == "Sales.Delayed"]
    assert (row["messages"], row["overdue"], row["next_due"]) == (60, 0, "2030-01-01T00:00:00.000Z")
    answer = client_of("writer").get(f"{SALES}?format=json")
    rows = json.loads(answer.getvalue())
    assert len({each["key"] for each in rows}) == 60, "all messages, not one page"
    assert rows[0]["kind"] == "deferred"
    answer = client_of("writer").get(f"{SALES}?format=csv")
    assert "'=1+1" in answer.getvalue().decode()


@pytest.mark.parametrize("name", ["A/b", "it's", HOSTILE, "שלום", "a_2Fb", "x y"])
def test_endpoint_of_any_name_has_a_page(sqlite_database: QueueDatabase, name: str) -> None:
    install(sqlite_database, ENDPOINTS={name: {"CALLBACKS": False}})
    DelayedTable(sqlite_database.alias, delayed_address(address_book_of(get_settings()), name)).add("{}", b"", datetime.now(UTC))
    (link,) = [link for link in page().links if link.startswith(LIST) and link != LIST]
    found = page(link)
    assert name in found.text()
    assert found.inline == []
    form = found.find("button", type="submit")
    assert not any(each.get("formaction") for each in form), "a viewer may neither deliver nor cancel"
    buttons = [each for each in page(link, "writer").find("button", type="submit") if each.get("formaction")]
    assert len(buttons) == 2
    assert post(str(buttons[0]["formaction"]), ids="1")[0] == 200


def test_two_hundred_tables_take_few_statements(postgresql_database: QueueDatabase) -> None:
    install(postgresql_database, ENDPOINTS={f"Sales{number}": {"CALLBACKS": False} for number in range(200)})
    put(postgresql_database, endpoint="Sales7", to="Sales7")
    client = client_of("viewer")
    for address in (LIST, f"{LIST}Sales7.Delayed/"):
        client.get(address)
        with CaptureQueriesContext(postgresql_database.connection) as queues, CaptureQueriesContext(connection) as managed:
            assert client.get(address).status_code == 200
        assert len(queues) + len(managed) <= 15
