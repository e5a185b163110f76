"""One message: times, exception, headers, body as hex and as a file; deleting and moving it."""

from __future__ import annotations

import pytest

from sqlqueue_app.models import OperatorAction
from tests.support.databases import QueueDatabase
from tests.support.filling import HOSTILE, count, install, message, row, table
from tests.support.pages import OVERVIEW, Markup, client_of

CONFIRMED = {"confirmed": "1"}
AUDITED = {
    "NServiceBus.TimeSent": "2026-11-20 10:00:00:000000 Z",
    "NServiceBus.ProcessingStarted": "2026-11-20 10:00:40:000000 Z",
    "NServiceBus.ProcessingEnded": "2026-11-20 10:00:40:250000 Z",
}
FAILED = {
    "NServiceBus.FailedQ": "Sales",
    "NServiceBus.ExceptionInfo.ExceptionType": "shop.OutOfStock",
    "NServiceBus.ExceptionInfo.Message": HOSTILE,
    "NServiceBus.ExceptionInfo.StackTrace": "shop.OutOfStock: no\n   at shop.place() in shop.py:line 4",
}


def put(database: QueueDatabase, *rows: object) -> str:
    """Put the rows into Sales; returns the address of the first message."""
    install(database)
    table(database, "Sales").send(rows)  # type: ignore[arg-type]
    (first, *_) = table(database, "Sales").peek(1, body_limit=0)
    return f"{OVERVIEW}Sales/{first.row_version}/"


def text(page: str, kind: str = "writer") -> str:
    answer = client_of(kind).get(page)
    assert answer.status_code == 200
    markup = Markup(answer.content.decode())
    assert markup.inline == []
    return markup.text()


def test_times_of_an_audited_message_are_shown(sqlite_database: QueueDatabase) -> None:
    page = put(sqlite_database, message(headers=AUDITED))
    assert "Delivery time 40 s Processing time 0.250 s Critical time 40 s" in text(page)


def test_differing_clocks_are_reported(sqlite_database: QueueDatabase) -> None:
    late = {**AUDITED, "NServiceBus.TimeSent": "2026-11-20 10:00:41:000000 Z"}
    found = text(put(sqlite_database, message(headers=late)))
    assert "Critical time \N{MINUS SIGN}0.750 s the clocks of two machines differ" in found


def test_exception_of_a_failed_message_is_shown(sqlite_database: QueueDatabase) -> None:
    page = put(sqlite_database, message(headers=FAILED))
    assert f"shop.OutOfStock : {HOSTILE}" in text(page)
    assert "at shop.place() in shop.py:line 4" in text(page)
    assert HOSTILE not in client_of("writer").get(page).content.decode()


def test_headers_are_filtered_by_text(sqlite_database: QueueDatabase) -> None:
    page = put(sqlite_database, message(headers={"Tenant": "acme"}))
    found = text(f"{page}?header=ACME").partition("Headers with")[2].partition("Row Raw row")[0]
    assert "Tenant acme" in found
    assert "NServiceBus.MessageId" not in found
    assert "No header contains this text." in text(f"{page}?header=nothing")


def test_body_is_shown_as_hex_and_downloaded(sqlite_database: QueueDatabase) -> None:
    body = b'{"a": 1}' + b" " * 100_000
    page = put(sqlite_database, row("{}", body))
    assert "00000000 7b 22 61 22" in text(f"{page}?hex")
    answer = client_of("writer").get(f"{page}body/")
    assert answer.content == body
    assert answer["Content-Type"] == "application/octet-stream"
    assert answer["X-Content-Type-Options"] == "nosniff"


def test_bodies_need_their_permission(sqlite_database: QueueDatabase) -> None:
    page = put(sqlite_database, row("{}", b'{"secret": 1}'))
    assert "secret" not in client_of("reader").get(page).content.decode()
    assert "secret" not in client_of("reader").get(f"{page}?hex").content.decode()
    assert "The body is not shown." in text(page, "reader")
    assert client_of("reader").get(f"{page}body/").status_code == 403


def test_message_is_deleted(queue_database: QueueDatabase) -> None:
    page = put(queue_database, message(), message())
    answer = client_of("writer").post(f"{page}delete/", CONFIRMED, follow=True)
    assert "was deleted." in Markup(answer.content.decode()).text()
    assert count(queue_database, "Sales") == 1
    again = client_of("writer").post(f"{page}delete/", CONFIRMED)
    assert again.status_code == 409
    assert [each.result for each in OperatorAction.objects.order_by("id")] == ["done", "failed"]


def test_message_is_moved_unchanged(queue_database: QueueDatabase) -> None:
    page = put(queue_database, row('{"NServiceBus.MessageId": "one"}', b"\x00body", lifetime_ms=3_600_000))
    (before,) = table(queue_database, "Sales").peek(1)
    client = client_of("admin")
    assert client.post(f"{page}move/", CONFIRMED).status_code == 400
    assert client.post(f"{page}move/", {**CONFIRMED, "to": "Nowhere"}).status_code == 409
    assert client.post(f"{page}move/", {**CONFIRMED, "to": "Sales"}).status_code == 409
    assert client.post(f"{page}move/", {**CONFIRMED, "to": "Sales.Priority"}).status_code == 302
    (after,) = table(queue_database, "Sales.Priority").peek(1)
    assert (after.headers, after.body, after.id) == (before.headers, before.body, before.id)
    assert after.expires is not None
    assert before.expires is not None
    assert abs((after.expires - before.expires).total_seconds()) < 5
    assert count(queue_database, "Sales") == 0
    assert OperatorAction.objects.latest("id").target.endswith("→ Sales.Priority")


@pytest.mark.parametrize(("page", "kind"), [("move", "writer"), ("delete", "reader"), ("move", "reader")])
def test_denied_user_is_refused_and_recorded(sqlite_database: QueueDatabase, page: str, kind: str) -> None:
    address = put(sqlite_database, message())
    assert client_of(kind).post(f"{address}{page}/", {**CONFIRMED, "to": "error"}).status_code == 403
    assert count(sqlite_database, "Sales") == 1
    assert [each.result for each in OperatorAction.objects.all()] == ["denied"]


def test_handled_message_links_to_a_search(sqlite_database: QueueDatabase) -> None:
    page = put(sqlite_database, message(headers={"NServiceBus.MessageId": "a&b/1"}))
    client = client_of("writer")
    (link,) = {link for link in Markup(client.get(f"{OVERVIEW}Sales/").content.decode()).links if link.startswith(page)}
    assert client.get(link).status_code == 200
    table(sqlite_database, "Sales").purge()
    answer = client.get(link)
    assert answer.status_code == 404
    found = Markup(answer.content.decode())
    search = "/admin/sqlqueue_app/search/?q=a%26b%2F1"
    assert search in found.links
    assert client.get(search).status_code == 200
    assert "Search for the message" not in Markup(client.get(page).content.decode()).text(), (
        "without the id there is nothing to find"
    )
