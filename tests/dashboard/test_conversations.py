"""The pages of conversations: found by any id, drawn, listed and exported, with any content."""

from __future__ import annotations

import json
import uuid
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext
from django.utils import translation

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.page import path_of, text_of_path
from sqlqueue_app.messages.failure_groups import deterministic_guid
from sqlqueue_app.models import LakeBatch, LakeFile, managed_alias
from sqlqueue_app.status.queues import address_book_of
from sqlqueue_app.tables.delayed import DelayedTable
from sqlqueue_app.tables.installation import delayed_address
from tests.support.conversations import BEGIN, audited, failed_one, sent
from tests.support.databases import QueueDatabase
from tests.support.failing import fail
from tests.support.filling import HOSTILE, install, row, table
from tests.support.pages import Markup, client_of, page_at

CONVERSATIONS = "/admin/sqlqueue_app/conversation/"
SEARCH = "/admin/sqlqueue_app/search/"
ENDPOINTS: dict[str, Any] = {"Sales": {"CALLBACKS": False, "AUDIT_QUEUE": "audit"}, "Billing": {"CALLBACKS": False}}
BILL = deterministic_guid("bill", "Billing")
IDS = ("o'c\"x", "a/b", "\u202e\u0639\u0631", "</>", "%2F", "_2F", "..", ".", "\\", "a\nb", HOSTILE, "?a=b#c", "x" * 300)


@pytest.fixture
def shop(queue_database: QueueDatabase) -> QueueDatabase:
    install(queue_database, ENDPOINTS=ENDPOINTS)
    return queue_database


def fill(database: QueueDatabase, conversation: str = "c-1") -> None:
    table(database, "audit").send([audited("order", conversation=conversation)])
    table(database, "Billing").send([sent("remind", "order", by="Sales", conversation=conversation, intent="Publish")])
    fail(database, [failed_one("bill", "order", conversation=conversation)])


def delay(database: QueueDatabase, name: str) -> None:
    address = delayed_address(address_book_of(get_settings()), "Sales")
    DelayedTable(database.alias, address).add(sent(name).headers, b"{}", BEGIN + timedelta(days=9_000))


def page(path: str = "", kind: str = "reader", status: int = 200) -> Markup:
    return page_at(CONVERSATIONS + path, kind, status)


def test_conversation_is_shown_in_two_diagrams_and_a_table(shop: QueueDatabase) -> None:
    fill(shop)
    shown = page("c-1/")
    assert shown.inline == []
    assert "3 messages, 3 endpoints: 1 handled, 1 failed, 1 waiting" in shown.text()
    assert len(shown.find("svg", role="group")) == 2
    words = [each["aria-label"] for each in shown.find("a", **{"class": "sq-node sq-talk-failed sq-talk-command"})]
    assert words == ["Shop.PlaceOrder (command) from Sales to Billing: failed"] * 2
    queued = shown.find("a", **{"class": "sq-node sq-talk-waiting sq-talk-event sq-talk-queued"})
    assert [each["href"] for each in queued] == ["/admin/sqlqueue_app/queue/Billing/1/"] * 2
    assert shown.find("path", **{"class": "sq-way sq-way-event"})
    assert "1. Shop.Order order handled – command Web → Sales" in shown.text()
    assert "0.250 s" in shown.text()
    assert f"/admin/sqlqueue_app/failedmessage/{BILL}/" in shown.links
    assert "Queues: the newest messages of 4 queues, up to 5,000 of each." in shown.text()


@pytest.mark.parametrize("name", IDS)
def test_id_of_any_shape_has_a_page(shop: QueueDatabase, name: str) -> None:
    fill(shop, name)
    address = f"{quote(path_of(name), safe='')}/"
    assert text_of_path(path_of(name)) == name
    assert "3 messages" in page(address).text()
    assert page(address).inline == []
    found = Markup(client_of("reader").get(SEARCH, {"q": "remind"}).content.decode())
    (conversation,) = {link for link in found.links if link.startswith(CONVERSATIONS) and link != CONVERSATIONS}
    assert "3 messages" in page(conversation.removeprefix(CONVERSATIONS)).text()
    (listed,) = {link for link in page().links if link.startswith(CONVERSATIONS) and link != CONVERSATIONS}
    assert "3 messages" in page(listed.removeprefix(CONVERSATIONS)).text()


def test_unknown_id_shows_the_searched_places(shop: QueueDatabase) -> None:
    shown = page("nothing/")
    assert "No message of this conversation was found." in shown.text()
    assert "Queues: the newest messages of 4 queues, up to 5,000 of each." in shown.text()
    assert "No unresolved failed message belongs to a conversation." in page().text()


def test_conversation_is_found_by_its_id_and_by_message_ids(shop: QueueDatabase) -> None:
    fill(shop)
    for name in ("c-1", "order", "bill", str(BILL)):
        found = Markup(client_of("reader").get(SEARCH, {"q": name}).content.decode())
        assert f"{CONVERSATIONS}c-1/" in found.links
    assert f"{CONVERSATIONS}c-1/" in page().links


def test_delayed_message_links_to_its_page(shop: QueueDatabase) -> None:
    delay(shop, "cancel")
    (link, _again, _third) = [each for each in page("c-1/").links if "/delayedmessage/" in each and each.count("/") > 5]
    answer = client_of("reader").get(link)
    assert (answer.status_code, "cancel" in answer.content.decode()) == (200, True)
    assert f"{CONVERSATIONS}c-1/" in Markup(answer.content.decode()).links


def test_messages_link_to_their_conversation(shop: QueueDatabase) -> None:
    fill(shop, "a/b")
    for address in (f"failedmessage/{BILL}/", "queue/Billing/1/", "queue/audit/1/"):
        answer = client_of("reader").get(f"/admin/sqlqueue_app/{address}")
        assert f"{CONVERSATIONS}a_2Fb/" in Markup(answer.content.decode()).links


def test_list_is_current_without_a_worker(shop: QueueDatabase) -> None:
    table(shop, "error").send([failed_one("bill", "order")])
    assert f"{CONVERSATIONS}c-1/" in page().links


def test_large_conversation_is_cut_in_the_diagrams_and_complete_in_the_table(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database, ENDPOINTS=ENDPOINTS)
    table(sqlite_database, "audit").send([audited(f"m-{number}", "m-0" if number else None, after=number) for number in range(150)])
    table(sqlite_database, "Billing").send([sent("late", "m-149")])
    shown = page("c-1/")
    assert "50 messages are drawn" in shown.text()
    assert "101 more are only in the table." in shown.text()
    assert len(shown.find("rect", rx="5")) == 50 + 2 + 1
    assert "waiting" in shown.text()
    assert "?from=51#sq-messages" in shown.links
    assert len(page("c-1/?from=101").find("td", **{"data-label": "Kind"})) == 50
    assert len(page("c-1/?from=151").find("td", **{"data-label": "Kind"})) == 1
    for odd in ("-1", "0", "9e9", "9" * 40, "²", "'"):
        assert len(page(f"c-1/?from={quote(odd)}").find("td", **{"data-label": "Kind"})) in (50, 1)


def test_conversation_export_needs_the_permission(shop: QueueDatabase) -> None:
    fill(shop)
    assert client_of("reader").get(f"{CONVERSATIONS}c-1/?format=json").status_code == 403
    answer = client_of("writer").get(f"{CONVERSATIONS}c-1/?format=json")
    found = {each["message_id"]: each for each in json.loads(b"".join(answer.streaming_content))}  # type: ignore[attr-defined]
    assert (found["order"]["state"], found["order"]["processing_seconds"], found["order"]["related_to"]) == ("handled", 0.25, None)
    assert (found["bill"]["failure"], found["bill"]["related_to"]) == (str(BILL), "order")
    assert (found["remind"]["kind"], found["remind"]["queue"], found["remind"]["row_version"]) == ("event", "Billing", 1)
    assert client_of("writer").get(f"{CONVERSATIONS}c-1/?format=csv").status_code == 200


ODD_ONES = (
    '"NServiceBus.MessageId":"\\ud800x","NServiceBus.RelatedTo":"\\udfff","NServiceBus.OriginatingEndpoint":"\\udc00"',
    f'"NServiceBus.MessageId":"{"m" * 5000}","NServiceBus.EnclosedMessageTypes":"{"T." * 4000}"',
    '"NServiceBus.TimeSent":"0001-01-01 00:00:00:000000 Z","NServiceBus.DeliverAt":"9999-12-31 23:59:59:999999 Z"',
    '"NServiceBus.TimeSent":"odd","NServiceBus.MessageIntent":"9","NServiceBus.IsSagaTimeoutMessage":null',
    '"NServiceBus.MessageId":"nul\\u0000","NServiceBus.EnclosedMessageTypes":"<b>,;[[","NServiceBus.OriginatingEndpoint":"\\u202e"',
)
ODD_TIMES = (
    '"NServiceBus.ProcessingStarted":"9999-12-31 23:59:59:999999 Z","NServiceBus.ProcessingEnded":"0001-01-01 00:00:00:000000 Z"'
)


@pytest.mark.parametrize("language", ["en", "de", "ar"])
def test_headers_of_any_kind_are_shown(shop: QueueDatabase, language: str) -> None:
    shop.settings.USE_THOUSAND_SEPARATOR = True
    shop.settings.MIDDLEWARE = [*shop.settings.MIDDLEWARE, "django.middleware.locale.LocaleMiddleware"]
    table(shop, "Sales").send([row(f'{{"NServiceBus.ConversationId":"c-1",{each}}}') for each in ODD_ONES])
    for queue in ("audit", "error"):
        table(shop, queue).send([row(f'{{"NServiceBus.ConversationId":"c-1",{ODD_TIMES},{each}}}') for each in ODD_ONES])
    with translation.override("en"):
        for path in ("c-1/", "", "?id=c-1", "c-1/?format=json", "c-1/?format=csv"):
            answer = client_of("superuser").get(CONVERSATIONS + path, headers={"accept-language": language})
            assert (answer.status_code, bool(answer.getvalue())) == (302 if "id=" in path else 200, "id=" not in path)
        shown = Markup(client_of("superuser").get(f"{CONVERSATIONS}c-1/", headers={"accept-language": language}).content.decode())
    drawn = [each for tag, each in shown.tags if tag in ("svg", "rect", "text") and "sq-icon" not in str(each.get("class"))]
    places = [value for each in drawn for name in ("x", "y", "width", "height") if (value := each.get(name))]
    assert len(places) > 60
    assert all(value.lstrip("-").isdecimal() for value in places if not value.endswith("rem"))


def test_dropped_queue_is_no_error(shop: QueueDatabase) -> None:
    fill(shop)
    with shop.connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {table(shop, 'Billing').qualified}")
    assert "2 messages" in page("c-1/").text()


@pytest.mark.parametrize("path", ["c-1/", ""])
def test_two_hundred_queues_take_few_statements(postgresql_database: QueueDatabase, path: str) -> None:
    satellites: dict[str, Any] = {f"Sales.{number}": {} for number in range(200)}
    sales = {"SATELLITES": satellites, "AUDIT_QUEUE": "audit"}
    install(postgresql_database, ENDPOINTS={"Sales": sales}, PIPELINE={"LAKE": "/none"})
    fail(postgresql_database, [failed_one("bill", "order")])
    shared = {"committed_at": BEGIN, "published_at": BEGIN, "lake_id": uuid.uuid4()}
    batch = LakeBatch.objects.using(managed_alias()).create(id=uuid.uuid4(), kind="audit", **shared)
    file = f"messages/queue=audit/day={BEGIN:%Y-%m-%d}/x-0.parquet"
    LakeFile.objects.using(managed_alias()).create(batch=batch, table="messages", path=file, rows=1, bytes=1, day=BEGIN.date())
    client = client_of("reader")
    own, managed = connections[postgresql_database.alias], connections["default"]
    with CaptureQueriesContext(own) as statements, CaptureQueriesContext(managed) as others:
        assert client.get(CONVERSATIONS + path).status_code == 200
    assert len(statements) + (0 if own is managed else len(others)) <= 15
