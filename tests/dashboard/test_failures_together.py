"""Failed messages and related objects: rows of the error queue, other classifiers, samples, pending retries."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta

import pytest
from django.contrib.auth.models import Permission, User

from sqlqueue_app.conf import get_settings
from sqlqueue_app.failures import queries
from sqlqueue_app.failures.operations import request_operation
from sqlqueue_app.failures.retrying import create_redirect
from sqlqueue_app.failures.selection import FailureSelection
from sqlqueue_app.messages.failure_groups import deterministic_guid
from sqlqueue_app.models import FailedAttempt, FailedMessage, FailureStatus, Redirect
from sqlqueue_app.status.events import Actor
from sqlqueue_app.status.queues import address_book_of
from sqlqueue_app.tables.row_selection import remove_rows
from sqlqueue_app.tables.rows import NewRow
from tests.support.databases import QueueDatabase
from tests.support.error_rows import FAILED_AT, failed
from tests.support.failing import fail
from tests.support.filling import install, message, row, table
from tests.support.pages import Markup, client_of, page_at

ADMIN = "/admin/sqlqueue_app/"
FAILURES = f"{ADMIN}failedmessage/"
GROUP = deterministic_guid("Message Type", "Shop.PlaceOrder")
ONE, TWO = deterministic_guid("m-1", "Sales"), deterministic_guid("m-2", "Sales")


def page(path: str, kind: str = "writer", status: int = 200) -> Markup:
    return page_at(path, kind, status)


def pending(database: QueueDatabase, *names: str, to: str = "Sales") -> Sequence[FailedMessage]:
    """Retried messages that wait in a queue."""
    found = fail(database, [failed(name) for name in names])
    waiting = [message() for _ in names]
    table(database, to).send(waiting)
    remove_rows(table(database, "error"), [each.row_version or 0 for each in found])
    FailedAttempt.objects.update(row_version=None)
    for each, sent in zip(found, waiting, strict=True):
        each.status, each.row_version, each.retried_to, each.retry_row_id = FailureStatus.RETRY_ISSUED, None, to, sent.id
        each.save()
    return found


# --- rows of the error queue --------------------------------------------------------------------------------------------------


def test_error_queue_row_and_failed_message_link_to_each_other(queue_database: QueueDatabase) -> None:
    install(queue_database)
    (first,) = fail(queue_database, [failed()])
    (again, other) = fail(queue_database, [failed(), failed("m-2")])
    assert (first.pk, again.pk, other.pk) == (ONE, ONE, TWO)
    links = page(f"{ADMIN}queue/error/").links
    assert [link for link in links if link.count(str(ONE))] == [f"{FAILURES}{ONE}/"] * 2
    for number in (first.row_version, again.row_version):
        assert f"{FAILURES}{ONE}/" in page(f"{ADMIN}queue/error/{number}/").links
    assert f"{ADMIN}queue/error/{again.row_version}/" in page(f"{FAILURES}{ONE}/").links


def test_row_that_is_not_indexed_has_no_link(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    table(sqlite_database, "error").send([failed(), row("no json")])
    table(sqlite_database, "Sales").send([message()])
    for path in ("queue/error/", "queue/error/1/", "queue/Sales/", "queue/Sales/1/"):
        assert not [link for link in page(ADMIN + path).links if str(ONE) in link]


def test_both_pages_of_a_message_show_the_same_exception_and_body(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    trace = "shop.OutOfStock: no\n   at shop.place() in shop.py:line 4\nTraceback (most recent call last):\n  File one"
    fail(sqlite_database, [failed(body=b'{"a": 1}', NServiceBus_ExceptionInfo_StackTrace=trace)])
    for path in (f"{FAILURES}{ONE}/", f"{ADMIN}queue/error/1/"):
        shown = page(path).text()
        assert "shop.OutOfStock : no more A-1" in shown
        assert "at shop.place() in shop.py:line 4 Python traceback Traceback (most recent call last): File one" in shown
        assert "00000000 7b 22 61 22" in page(f"{path}?hex").text()
        assert "The body is not shown." in page(path, "reader").text()


# --- pending retries ----------------------------------------------------------------------------------------------------------


def test_pending_retries_are_selected_individually(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    pending(sqlite_database, "m-1", "m-2")
    shown = page(f"{FAILURES}pending/")
    assert {each["value"] for each in shown.find("input", type="checkbox", name="ids")} == {str(ONE), str(TWO)}
    assert shown.find("button", type="submit", formaction=f"{FAILURES}complete/")
    confirmation = page(f"{FAILURES}complete/?only=ids&ids={ONE}")
    assert "the message" in confirmation.text()
    answer = client_of("writer").post(f"{FAILURES}complete/", {"ids": str(ONE), "confirmed": "1"})
    assert answer.status_code == 302
    statuses = {each.pk: each.status for each in FailedMessage.objects.all()}
    assert statuses == {ONE: FailureStatus.RESOLVED, TWO: FailureStatus.RETRY_ISSUED}


@pytest.mark.parametrize("kind", ["reader", "viewer"])
def test_denied_user_sees_the_reason_at_the_selection(sqlite_database: QueueDatabase, kind: str) -> None:
    install(sqlite_database)
    pending(sqlite_database, "m-1")
    shown = page(f"{FAILURES}pending/", kind)
    assert not shown.find("button", type="submit", formaction=f"{FAILURES}complete/")
    assert "You need the permission “Can retry failed messages”." in shown.text()


# --- two classifiers ----------------------------------------------------------------------------------------------------------


def other_type(name: str, exception: str = "shop.OutOfStock") -> NewRow:
    return failed(name, NServiceBus_EnclosedMessageTypes="Shop.CancelOrder", NServiceBus_ExceptionInfo_ExceptionType=exception)


@pytest.mark.parametrize("query", ["by=exception&and=type", "by=type&and=exception"])
def test_groups_can_combine_two_classifiers(queue_database: QueueDatabase, query: str) -> None:
    install(queue_database)
    another = other_type("m-4", "shop.Other")
    fail(queue_database, [failed("m-1"), failed("m-2"), other_type("m-3"), another])
    shown = page(f"{FAILURES}?{query}")
    found = [link for link in shown.links if "also=" in link and "/messages/" in link]
    assert len(found) == 3
    counts = sorted(len([each for each in page(link).find("tr", role="row") if "data-key" in each]) for link in found)
    assert counts == [1, 1, 2]
    assert [each["href"] for each in shown.find("a", **{"aria-current": "true"}) if "and=" in str(each["href"])]
    confirmation = page(found[0].replace("messages/?", "retry/?"))
    assert "the group “" in confirmation.text()
    assert confirmation.text().count("the group “") == 2


@pytest.mark.parametrize("query", ["by=type&and=type", "by=type&and=odd", "and=", "by=odd&and=%00", "after=1_2_3&and=type"])
def test_invalid_pair_of_classifiers_uses_only_one(sqlite_database: QueueDatabase, query: str) -> None:
    install(sqlite_database)
    fail(sqlite_database, [failed("m-1")])
    assert "1 message: Unresolved" in page(f"{FAILURES}?{query}").text()


def test_pairs_of_groups_are_paginated(queue_database: QueueDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "GROUPS_PER_PAGE", 2)
    install(queue_database)
    types = [f"Shop.T{number}" for number in range(5)]
    fail(queue_database, [failed(f"m-{each}", NServiceBus_EnclosedMessageTypes=each) for each in types])
    address, seen = f"{FAILURES}?by=exception&and=type", []
    while address:
        shown = page(address)
        seen += [each for each in types if each in shown.text()]
        following = shown.find("a", rel="next")
        address = FAILURES + str(following[0]["href"]) if following else ""
    assert sorted(seen) == types
    answer = client_of("writer").get(f"{FAILURES}?by=exception&and=type&format=json")
    exported = json.loads(b"".join(answer.streaming_content))  # type: ignore[attr-defined]
    assert sorted(each["also_title"] for each in exported) == types
    assert {each["also_classifier"] for each in exported} == {"Message Type"}


# --- a sample of a group ------------------------------------------------------------------------------------------------------


def test_sample_of_a_group_is_retried(queue_database: QueueDatabase) -> None:
    install(queue_database)
    later = FAILED_AT + timedelta(hours=1)
    times = {"m-1": FAILED_AT, "m-2": later, "m-3": later}
    fail(queue_database, [failed(name, at=at, NServiceBus_FailedQ="Sales") for name, at in times.items()])
    group = f"{FAILURES}group/{GROUP}/"
    assert page(group).find("input", name="sample", type="number")
    refused = page(group, "reader")
    assert not refused.find("input", name="sample", type="number")
    assert "Retry a sample You need the permission “Can retry failed messages”." in refused.text()
    confirmation = page(f"{FAILURES}retry/?group={GROUP}&sample=2")
    ids = [str(each["value"]) for each in confirmation.find("input", type="hidden", name="ids")]
    assert sorted(ids) == sorted(str(deterministic_guid(name, "Sales")) for name in ("m-2", "m-3"))
    answer = client_of("writer").post(f"{FAILURES}retry/", {"ids": ids, "confirmed": "1"})
    assert answer.status_code == 302
    assert table(queue_database, "Sales").depth().waiting == 2
    assert table(queue_database, "error").depth().waiting == 1


@pytest.mark.parametrize("sample", ["0", "-1", "501", "x", "9" * 90, "%00"])
def test_invalid_sample_selects_nothing(sqlite_database: QueueDatabase, sample: str) -> None:
    install(sqlite_database)
    fail(sqlite_database, [failed("m-1")])
    page(f"{FAILURES}retry/?group={GROUP}&sample={sample}")
    answer = client_of("writer").post(f"{FAILURES}retry/?group={GROUP}&sample={sample}", {"confirmed": "1"})
    assert answer.status_code == 409
    assert table(sqlite_database, "error").depth().waiting == 1


# --- redirects for retries that wait ------------------------------------------------------------------------------------------


def canonical(name: str) -> str:
    book = address_book_of(get_settings())
    return book.canonical(book.of_queue(name))


@pytest.fixture
def turned(queue_database: QueueDatabase) -> QueueDatabase:
    """Two retries were sent to the queue Old; one still waits there."""
    install(queue_database, ENDPOINTS={"Sales": {"CALLBACKS": False}, "Old": {"CALLBACKS": False}})
    pending(queue_database, "m-1", "m-2", to="Old")
    FailedMessage.objects.update(retried_to=canonical("Old"))
    remove_rows(table(queue_database, "Old"), table(queue_database, "Old").row_versions(10)[1:])
    return queue_database


def test_new_redirect_is_offered_for_waiting_retries(turned: QueueDatabase) -> None:
    admin = client_of("admin")
    (waiting,) = table(turned, "Old").peek(1)
    made = admin.post(f"{ADMIN}redirect/make/", {"from": "Old", "to": "Sales", "confirmed": "1"})
    confirmation = page(made.headers["Location"], "admin")
    assert "it may have been handled, and would be handled twice" in confirmation.text()
    assert "Will be moved if they still wait 2" in confirmation.text()
    assert table(turned, "Old").depth().waiting == 1, "nothing is done before it is confirmed"
    answer = admin.post(made.headers["Location"], {"confirmed": "1"}, follow=True)
    assert "1 pending retry redirected. 1 was skipped." in Markup(answer.content.decode()).text()
    (moved,) = table(turned, "Sales").peek(1)
    assert (moved.headers, moved.body, table(turned, "Old").depth().waiting) == (waiting.headers, waiting.body, 0)
    exported = {each.pk: (each.retried_to, each.status) for each in FailedMessage.objects.all()}
    assert exported == {ONE: (canonical("Sales"), FailureStatus.RETRY_ISSUED), TWO: (canonical("Old"), FailureStatus.RETRY_ISSUED)}
    assert Redirect.objects.get().used == 1
    assert "It waits in" in page(f"{FAILURES}pending/").text()


def test_redirected_retries_are_listed_afterwards(turned: QueueDatabase) -> None:
    FailedMessage.objects.filter(pk=TWO).delete()
    admin = client_of("admin")
    made = admin.post(f"{ADMIN}redirect/make/", {"from": "Old", "to": "Sales", "confirmed": "1"})
    answer = admin.post(made.headers["Location"], {"confirmed": "1"}, follow=True)
    assert [url for url, _status in answer.redirect_chain] == [f"{FAILURES}pending/"]
    shown = Markup(answer.content.decode()).text()
    assert "1 pending retry redirected." in shown
    assert "It waits in" in shown


def test_new_redirect_offers_no_retries_without_the_permission(turned: QueueDatabase) -> None:
    client, user = client_of("viewer"), User.objects.get(username="viewer")
    user.user_permissions.add(Permission.objects.get(content_type__app_label="sqlqueue_app", codename="manage_redirect"))
    answer = client.post(f"{ADMIN}redirect/make/", {"from": "Old", "to": "Sales", "confirmed": "1"}, follow=True)
    assert answer.status_code == 200
    shown = Markup(answer.content.decode()).text()
    assert "go to" in shown
    assert "apply the redirect to them too" not in shown


def test_redirects_are_applied_from_both_lists(turned: QueueDatabase) -> None:
    create_redirect(get_settings(), "Old", "Sales")
    (link,) = [each for each in page(f"{ADMIN}redirect/", "admin").links if "/failedmessage/redirect/" in each]
    assert "sent again to" in page(link, "admin").text()
    assert page(f"{FAILURES}pending/").find("button", type="submit", formaction=f"{FAILURES}redirect/")
    assert client_of("writer").post(f"{FAILURES}redirect/", {"ids": str(ONE), "confirmed": "1"}).status_code == 302
    assert table(turned, "Sales").depth().waiting == 1
    assert client_of("reader").post(f"{FAILURES}redirect/", {"ids": str(ONE), "confirmed": "1"}).status_code == 403


def test_retries_to_other_queues_are_not_redirected(turned: QueueDatabase) -> None:
    confirmation = page(f"{FAILURES}redirect/?statuses=retry_issued")
    assert "None of these messages was sent to a queue whose retries are redirected." in confirmation.text()
    answer = client_of("writer").post(f"{FAILURES}redirect/", {"statuses": "retry_issued", "confirmed": "1", "typed": "0"})
    assert answer.status_code == 409
    request_operation(get_settings(), "redirect", FailureSelection(ids=(ONE,)), actor=Actor("anna"))
    assert table(turned, "Old").depth().waiting == 1
    FailedMessage.objects.update(retried_to="nowhere")
    operation = request_operation(get_settings(), "redirect", FailureSelection(ids=(ONE, TWO)), actor=Actor("anna"))
    assert (operation.done, operation.skipped) == (0, 2)


def test_redirect_moves_a_message_once(turned: QueueDatabase) -> None:
    create_redirect(get_settings(), "Old", "Sales")
    operations = [
        request_operation(get_settings(), "redirect", FailureSelection(ids=(ONE,)), actor=Actor("anna")) for _ in range(2)
    ]
    assert [each.done for each in operations] == [1, 0]
    assert table(turned, "Sales").depth().waiting == 1
