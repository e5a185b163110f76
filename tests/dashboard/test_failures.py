"""The pages of failed messages: groups, lists, one message, notes, pending retries, with any content."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.failure_groups import deterministic_guid
from sqlqueue_app.models import FailedAttempt, FailedMessage, FailureGroup, FailureStatus, OperatorAction
from sqlqueue_app.tables.row_selection import remove_rows
from tests.support.databases import QueueDatabase
from tests.support.error_rows import FAILED_AT, failed
from tests.support.filling import HOSTILE, install, message, row, table
from tests.support.pages import Markup, client_of, page_at

NOWHERE = "3c3c90ba-3dda-41bb-b5ab-460449a8f80e"
FAILURES = "/admin/sqlqueue_app/failedmessage/"
LISTS = ("messages/", "archived/", "resolved/", "gone/", "unreadable/", "pending/")
ONE = deterministic_guid("m-1", "Sales")
GROUP = deterministic_guid("Message Type", "Shop.PlaceOrder")
PAGES = ("", *LISTS, f"{ONE}/", f"group/{GROUP}/")


@pytest.fixture
def filled(queue_database: QueueDatabase) -> QueueDatabase:
    """A database with one failed message that is not indexed yet."""
    install(queue_database)
    table(queue_database, "error").send([failed(body=b'{"secret": 1}')])
    return queue_database


def page(path: str = "", kind: str = "writer", status: int = 200) -> Markup:
    return page_at(FAILURES + path, kind, status)


def test_groups_are_current_without_a_worker(filled: QueueDatabase) -> None:
    shown = page()

    assert "1 message: Unresolved" in shown.text()
    assert "shop.OutOfStock: shop.handlers.place()" in shown.text()
    assert len(shown.find("tr", role="row")) == 2
    assert shown.find("svg", role="img")
    assert shown.inline == []


def test_all_error_queues_are_read_at_once_without_a_worker(queue_database: QueueDatabase) -> None:
    names = [f"errors{number}" for number in range(4)]
    install(queue_database, ENDPOINTS={f"E{name}": {"ERROR_QUEUE": name} for name in names})
    for name in names:
        table(queue_database, name).send([failed(name)])

    assert "4 messages: Unresolved" in page().text()


@pytest.mark.parametrize(
    ("by", "title"),
    [
        ("type", "Shop.PlaceOrder"),
        ("address", "Sales@dbo"),
        ("endpoint", "Sales"),
        ("instance", "0" * 32),
        ("odd", "shop.OutOfStock"),
    ],
)
def test_groups_follow_the_chosen_classifier(filled: QueueDatabase, by: str, title: str) -> None:
    assert title in page(f"?by={by}").text()


def test_exports_of_lists_need_the_permission(filled: QueueDatabase) -> None:
    table(filled, "error").send([failed("=1+1"), row("no json", b"x")])
    page()

    assert client_of("viewer").get(f"{FAILURES}messages/?format=csv").status_code == 403
    for path, lines in (("messages/", 4), ("", 2), ("?by=type", 2), ("unreadable/", 2), ("pending/", 1), (f"group/{GROUP}/", 3)):
        joint = "&" if "?" in path else "?"
        answer = client_of("admin").get(f"{FAILURES}{path}{joint}format=csv")
        text = b"".join(answer.streaming_content).decode("utf-8-sig")  # type: ignore[attr-defined]
        assert len(text.splitlines()) == lines, path
        json_answer = client_of("admin").get(f"{FAILURES}{path}{joint}format=json")
        found = json.loads(b"".join(json_answer.streaming_content))  # type: ignore[attr-defined]
        assert len(found) == lines - 1
    listed = client_of("admin").get(f"{FAILURES}messages/?format=csv")
    assert "'=1+1" in b"".join(listed.streaming_content).decode()  # type: ignore[attr-defined]


def test_actions_are_beside_their_objects(filled: QueueDatabase) -> None:
    shown = page("messages/?q=endpoint:Sales")
    assert f"{FAILURES}retry/?statuses=unresolved&endpoint=Sales" in shown.links
    (form,) = [each for each in shown.find("button", type="submit") if each.get("formaction") == f"{FAILURES}retry/"]
    assert shown.find("input", type="checkbox", value=str(ONE))
    chosen = client_of("writer").get(f"{form['formaction']}?only=ids&ids={ONE}")
    assert "the message" in chosen.content.decode()

    assert f"{FAILURES}retry/?ids={ONE}" in page(f"{ONE}/").links
    assert any(link.startswith(f"{FAILURES}retry/?group={GROUP}") for link in page(f"group/{GROUP}/").links)
    refused = page(f"{ONE}/", kind="viewer")
    assert f"{FAILURES}retry/?ids={ONE}" not in refused.links
    assert "You need the permission “Can retry failed messages”." in refused.text()


def test_group_leads_to_the_messages_that_its_row_counts(filled: QueueDatabase) -> None:
    table(filled, "error").send([failed("m-2", NServiceBus_ProcessingEndpoint="Billing")])
    shown = page("?by=type&q=endpoint:Billing")
    assert f"{FAILURES}messages/?group={GROUP}&classifier=type&statuses=unresolved&endpoint=Billing" in shown.links
    assert f"{FAILURES}group/{GROUP}/" in page("?by=type").links


def parts_of(url: str) -> set[tuple[str, ...]]:
    """The page of a URL and each parameter with its value; there are too many combinations to visit."""
    parts = urlsplit(url)
    return {(parts.path,), *((parts.path, *each) for each in parse_qsl(parts.query, True) if each[0] != "back")}


def test_links_lead_to_every_page(filled: QueueDatabase) -> None:
    linked: set[str] = set()
    visited: set[tuple[str, ...]] = set()
    left = [FAILURES]
    client = client_of("superuser")
    while left:
        path = left.pop()
        answer = client.get(path)
        assert answer.status_code == 200, path
        if answer.streaming:
            continue
        shown = Markup(answer.content.decode())
        assert shown.inline == []
        for link in (each for each in shown.links if not each.startswith("#")):
            target = link if link.startswith("/") else path.partition("?")[0] + link
            if target.startswith(FAILURES):
                linked.add(target)
                if not parts_of(target) <= visited:
                    visited |= parts_of(target)
                    left.append(target)

    assert {FAILURES + each for each in (*LISTS, f"{ONE}/", f"group/{GROUP}/", f"group/{GROUP}/note/")} <= linked


def test_message_is_shown_in_full(filled: QueueDatabase) -> None:
    shown = page(f"{ONE}/")

    for text in ("m-1", "Shop.PlaceOrder", "Sales@dbo", "no more A-1", "at shop.handlers.place() in /shop.py:line 7", "secret"):
        assert text in shown.text()
    number = table(filled, "error").row_versions(1)[0]
    assert f"/admin/sqlqueue_app/queue/error/{number}/" in shown.links
    # Addresses of PostgreSQL contain no @.
    assert ("/admin/sqlqueue_app/queue/Sales/" in shown.links) == (filled.vendor != "postgresql")


def test_traceback_is_shown_below_the_frames(filled: QueueDatabase) -> None:
    trace = "ValueError\n   at a.b() in /a.py:line 1\nTraceback (most recent call last):\n  the rest\n"
    table(filled, "error").send([failed("two", NServiceBus_ExceptionInfo_StackTrace=trace)])

    page()
    shown = page(f"{deterministic_guid('two', 'Sales')}/")

    assert "Python traceback" in shown.text()
    assert "Traceback (most recent call last): the rest" in shown.text()


def test_bodies_need_their_own_permission(filled: QueueDatabase) -> None:
    shown = page(f"{ONE}/", kind="viewer")

    assert "secret" not in shown.text()
    assert "You need the permission “Can see the bodies of messages”." in shown.text()


def test_headers_are_filtered(filled: QueueDatabase) -> None:
    shown = page(f"{ONE}/?header=conversation")

    assert "NServiceBus.ConversationId" in shown.text()
    assert "NServiceBus.TimeOfFailure" not in shown.text().partition("Raw row")[0]


def test_message_without_its_row_is_shown(filled: QueueDatabase) -> None:
    page()
    table(filled, "error").purge()

    shown = page(f"{ONE}/")

    assert "Gone from the error queue" in shown.text()
    assert "is no longer in the error queue" in shown.text()
    assert "m-1" in page("gone/").text()


def test_message_of_an_error_queue_that_left_the_settings_is_shown(filled: QueueDatabase) -> None:
    page()
    install(filled, ENDPOINTS={"Sales": {"ERROR_QUEUE": "errors"}})

    shown = page(f"{ONE}/")

    assert "is no longer in the error queue" not in shown.text()
    assert "secret" in shown.text()
    table(filled, "error").purge()
    assert "Gone from the error queue" in page(f"{ONE}/").text()


@pytest.mark.parametrize("path", [f"{NOWHERE}/", f"group/{NOWHERE}/", f"group/{NOWHERE}/note/"])
def test_unknown_objects_return_404(filled: QueueDatabase, path: str) -> None:
    page(path, status=404)


def test_query_bar_finds_messages(filled: QueueDatabase) -> None:
    table(filled, "error").send([failed("other", NServiceBus_ProcessingEndpoint="Billing")])

    assert "1 message: endpoint Billing; unresolved" in page(f"messages/?q={quote('endpoint:Billing')}").text()
    assert "2 messages: Unresolved" in page("messages/").text()
    assert "1 message: with the text “OTHER”" in page("messages/?q=OTHER").text()
    nothing = page("messages/?q=status:odd").text()
    assert "“odd” is not a status" in nothing
    assert "0 messages: nothing" in nothing


def test_relative_times_are_found_without_use_tz(queue_database: QueueDatabase, settings: Any) -> None:
    settings.USE_TZ, settings.TIME_ZONE = False, "Asia/Tokyo"
    install(queue_database)
    table(queue_database, "error").send([failed(at=datetime.now(UTC) - timedelta(minutes=30))])

    assert "1 message: " in page("messages/?q=failed:-1h..now").text()


@pytest.mark.parametrize("name", ["q", "text"])
def test_too_long_search_is_refused(filled: QueueDatabase, name: str) -> None:
    words = "+".join(f"w{each}" for each in range(400))

    shown = page(f"messages/?{name}={words}").text()

    assert "Search for at most 50 words at once." in shown
    assert "0 messages: nothing" in shown


def test_hostile_names_are_escaped_and_linked(filled: QueueDatabase) -> None:
    hostile = failed(
        HOSTILE,
        NServiceBus_EnclosedMessageTypes=HOSTILE,
        NServiceBus_ProcessingEndpoint=HOSTILE,
        NServiceBus_FailedQ=f"{HOSTILE}@[d/b]'\"",
        NServiceBus_ExceptionInfo_ExceptionType=HOSTILE,
        NServiceBus_ExceptionInfo_Message=HOSTILE,
    )
    table(filled, "error").send([hostile])
    for path in ("", "messages/", "?by=type", "?by=address", f"{deterministic_guid(HOSTILE, HOSTILE)}/"):
        answer = client_of("superuser").get(FAILURES + path)
        assert answer.status_code == 200
        html = answer.content.decode()
        assert HOSTILE not in html
        assert Markup(html).inline == []


def test_all_pages_are_linked(filled: QueueDatabase) -> None:
    table(filled, "error").send([failed(f"n-{number}", at=FAILED_AT + timedelta(seconds=number)) for number in range(59)])
    seen: list[str | None] = []
    address = "messages/?size=25"
    while True:
        shown = page(address)
        seen += [each["data-key"] for each in shown.find("tr") if "data-key" in each]
        following = shown.find("a", rel="next")
        if not following:
            break
        address = "messages/" + str(following[0]["href"])

    assert len(seen) == len(set(seen)) == 60


@pytest.mark.parametrize("path", ["", "messages/", f"group/{GROUP}/", f"{ONE}/"])
def test_index_is_written_by_the_clock_of_the_database(filled: QueueDatabase, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """The clock of a web host may differ: notifications would miss a group that seems older than the rule or the last group."""
    ahead = timezone.now() + timedelta(hours=1)
    monkeypatch.setattr("sqlqueue_app.dashboard.failures.utc_now", lambda: ahead)
    client_of("writer").get(FAILURES + path)
    written = FailureGroup.objects.using(filled.alias)
    assert written.exists()
    assert not written.filter(first_seen_at__gte=ahead - timedelta(minutes=30)).exists()


def test_missing_row_is_noted_by_the_clock_of_the_database(filled: QueueDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    page()
    # From here on, the update of the index skips this queue, so that the page of the message finds the missing row.
    install(filled, ENDPOINTS={"Sales": {"ERROR_QUEUE": "errors"}})
    table(filled, "error").purge()
    ahead = timezone.now() + timedelta(hours=1)
    monkeypatch.setattr("sqlqueue_app.failures.queries.timezone.now", lambda: ahead)
    page(f"{ONE}/")
    gone = FailedMessage.objects.using(filled.alias).get(status=FailureStatus.GONE)
    assert gone.status_at < ahead - timedelta(minutes=30)


def test_unreadable_rows_have_their_own_list(filled: QueueDatabase) -> None:
    table(filled, "error").send([row("no json", b"x")])

    shown = page("unreadable/").text()

    assert "the headers are not JSON" in shown
    assert "1 message" in shown
    poison = FailedMessage.objects.using(filled.alias).exclude(poison="").get()
    assert "This row cannot be read as a failed message" in page(f"{poison.pk}/").text()


def test_pending_retries_show_the_reason(filled: QueueDatabase) -> None:
    page()
    target = table(filled, "Sales")
    waiting = message()
    target.send([waiting])
    remove_rows(table(filled, "error"), table(filled, "error").row_versions(1))
    FailedAttempt.objects.using(filled.alias).update(row_version=None)
    FailedMessage.objects.using(filled.alias).update(
        status=FailureStatus.RETRY_ISSUED, row_version=None, retried_to="Sales", retry_row_id=waiting.id
    )

    number = target.row_versions(1)[0]
    assert f"It waits in “Sales” as number {number}." in page("pending/").text()
    target.purge()
    assert "It was received from “Sales”, but not acknowledged" in page("pending/").text()
    FailedMessage.objects.using(filled.alias).update(retried_to="nowhere")
    assert "The queue “nowhere” no longer exists." in page("pending/").text()


def test_note_has_an_author_and_can_be_removed(filled: QueueDatabase) -> None:
    page()
    address = f"{FAILURES}group/{GROUP}/note/"
    admin = client_of("admin")

    answer = admin.post(address, {"note": f"known: see #7\r\n{HOSTILE}", "confirmed": "1"})
    assert answer.status_code == 302
    group = FailureGroup.objects.using(filled.alias).get(pk=GROUP)
    assert (group.note, group.noted_by) == (f"known: see #7\n{HOSTILE}", "admin")
    for path in ("?by=type", f"group/{GROUP}/", f"{ONE}/"):
        assert "known: see #7" in page(path).text()

    opened = {"version": page(f"group/{GROUP}/note/", "admin").find("input", name="version")[0]["value"]}
    assert admin.post(address, {"note": "first", "confirmed": "1", **opened}).status_code == 302
    second = admin.post(address, {"note": "second", "confirmed": "1", **opened})
    assert (second.status_code, "It was changed after you opened" in second.content.decode()) == (409, True)
    group.refresh_from_db()
    assert group.note == "first"

    assert admin.post(address, {"note": "x" * 5_000, "confirmed": "1"}).status_code == 400
    assert admin.post(address, {"note": " ", "confirmed": "1"}).status_code == 302
    group.refresh_from_db()
    assert (group.note, group.noted_by, group.noted_at) == ("", "", None)
    results = OperatorAction.objects.using(filled.alias).values_list("action", "result")
    assert list(results) == [("note", "done")] * 3


@pytest.mark.parametrize("kind", ["viewer", "reader", "writer"])
def test_user_without_the_permission_sees_why_notes_are_denied(filled: QueueDatabase, kind: str) -> None:
    page()
    shown = page(f"group/{GROUP}/", kind=kind)
    assert shown.find("button", **{"class": "sq-button"})
    assert "You need the permission" in shown.text()

    answer = client_of(kind).post(f"{FAILURES}group/{GROUP}/note/", {"note": "x", "confirmed": "1"})

    assert answer.status_code == 403
    assert not FailureGroup.objects.using(filled.alias).exclude(note="").exists()
    assert OperatorAction.objects.using(filled.alias).get().result == "denied"


def test_missing_error_queue_is_named_and_the_rest_is_shown(filled: QueueDatabase) -> None:
    page()
    filled.configure(ENDPOINTS={"Sales": {"ERROR_QUEUE": "elsewhere"}})

    shown = page().text()

    assert "An error queue cannot be read" in shown
    assert "elsewhere" in shown
    assert "shop.OutOfStock" in shown
    assert "m-1" in page(f"{ONE}/").text()


def test_owner_of_the_error_queue_is_shown(filled: QueueDatabase) -> None:
    assert "belong to ServiceControl" not in page().text()
    install(filled, ERROR_QUEUE_OWNER="servicecontrol")

    assert "belong to ServiceControl" in page().text()
    assert "belong to ServiceControl" in page(f"{ONE}/").text()


@pytest.mark.parametrize("path", PAGES)
def test_page_takes_few_statements(filled: QueueDatabase, path: str) -> None:
    table(filled, "error").send([failed(f"n-{number}") for number in range(30)])
    page()
    page("pending/")
    client = client_of("superuser")

    with CaptureQueriesContext(connections[filled.alias]) as queries, CaptureQueriesContext(connections["default"]) as others:
        client.get(FAILURES + path)

    count = len(queries) if filled.alias == "default" else len(queries) + len(others)
    assert count <= 15
    assert get_settings().database == filled.alias


def test_first_failure_of_a_group_is_older_than_its_retry(filled: QueueDatabase) -> None:
    """The list of groups shows the same time, and so does the start of the alert."""
    table(filled, "error").send([failed(at=FAILED_AT + timedelta(minutes=30))])
    page()
    found = FailedMessage.objects.get()
    assert (found.first_failed_at, found.failed_at) == (FAILED_AT, FAILED_AT + timedelta(minutes=30))
    (group,) = json.loads(client_of("writer").get(f"{FAILURES}?by=exception&format=json").getvalue())
    assert group["first"].startswith(f"{FAILED_AT:%Y-%m-%dT%H:%M:%S}")
    first = page(f"group/{found.exception_group}/").text().partition("First failure")[2].partition("Last failure")[0]
    assert f"{FAILED_AT:%Y-%m-%d %H:%M:%S}" in first
    overview = Markup(client_of("viewer").get("/admin/sqlqueue_app/dashboard/").content.decode()).text()
    assert f"since {FAILED_AT:%Y-%m-%d %H:%M:%S} (" in overview
