"""The outcomes of the messages of a bulk operation are counted and listed on its page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest
from django.test.utils import CaptureQueriesContext
from django.utils import translation

from sqlqueue_app.models import Event, FailedMessage, FailureGroup, FailureStatus, Instance, Operation, OperatorAction
from sqlqueue_app.tables.rows import NewRow
from tests.support.databases import QueueDatabase
from tests.support.error_rows import FAILED_AT, acknowledgement, failed
from tests.support.failing import fail
from tests.support.filling import install, instance, table
from tests.support.pages import Markup, client_of

ADMIN = "/admin/sqlqueue_app/"
FAILURES = f"{ADMIN}failedmessage/"
CONFIRMED = {"confirmed": "1"}
LATER = FAILED_AT + timedelta(hours=1)


def row(name: str, at: datetime = FAILED_AT) -> NewRow:
    return failed(name, at=at, NServiceBus_FailedQ="Sales")


def retried(database: QueueDatabase, number: int) -> tuple[str, Sequence[FailedMessage]]:
    """The given number of messages retried together, and the page after the retry."""
    install(database)
    found = fail(database, [row(f"m-{each}") for each in range(number)])
    group = found[0].exception_group
    answer = client_of("writer").post(f"{FAILURES}retry/?group={group}&classifier=exception", {**CONFIRMED, "typed": str(number)})
    assert answer.status_code == 302, Markup(answer.content.decode()).text()
    return answer.headers["Location"], found


def results(page: str) -> dict[str, str]:
    """The numbers of the page by their label."""
    html = client_of("viewer").get(page).content.decode()
    assert Markup(html).inline == []
    (tiles,) = re.findall(r'<ul class="sq-tiles".*?</ul>', html, re.DOTALL)
    return dict(re.findall(r'<a href="[^"]*">([^<]*)</a> <strong><data value="(\d+)"', tiles))


def test_page_of_a_group_names_its_operations(queue_database: QueueDatabase) -> None:
    _page, found = retried(queue_database, 1)
    client_of("writer").post(f"{FAILURES}complete/?ids={found[0].pk}", CONFIRMED)
    html = client_of("viewer").get(f"{FAILURES}group/{found[0].exception_group}/").content.decode()
    assert "Mark as resolved, just now" in Markup(html).text()


def test_retry_redirects_to_the_page_of_its_results(queue_database: QueueDatabase) -> None:
    page, found = retried(queue_database, 3)
    operation = Operation.objects.get()
    assert page == f"{ADMIN}operation/{operation.pk}/"
    assert results(page) == {"Pending": "3", "Handled": "0", "Failed again": "0"}
    assert set(FailedMessage.objects.values_list("operation", flat=True)) == {operation.pk}

    table(queue_database, "error").send([acknowledgement(found[0].pk), row("m-1", at=LATER)])

    assert results(page) == {"Pending": "1", "Handled": "1", "Failed again": "1"}
    links = Markup(client_of("viewer").get(page).content.decode()).links
    assert {f"{FAILURES}{each.pk}/" for each in found} <= set(links)


def test_message_that_was_taken_out_after_its_retry_is_counted(queue_database: QueueDatabase) -> None:
    page, _found = retried(queue_database, 2)
    table(queue_database, "error").send([row("m-1", at=LATER)])
    assert results(page) == {"Pending": "1", "Handled": "0", "Failed again": "1"}
    table(queue_database, "error").purge()
    assert results(page) == {"Pending": "1", "Handled": "0", "Failed again": "0", "Removed": "1"}


def test_each_outcome_leads_to_its_list(queue_database: QueueDatabase) -> None:
    page, found = retried(queue_database, 3)
    table(queue_database, "error").send([acknowledgement(found[0].pk), row("m-1", at=LATER)])
    client_of("viewer").get(page)
    operation = f"operation={Operation.objects.get().pk}"
    for name, only, heading in (
        ("pending", "m-2", "Pending retries"), ("resolved", "m-0", "Resolved"), ("messages", "m-1", "Failed messages"),
    ):  # fmt: skip
        (link,) = [each for each in Markup(client_of("viewer").get(page).content.decode()).links if f"{name}/?{operation}" in each]
        listed = Markup(client_of("viewer").get(link).content.decode())
        text = listed.text()
        assert only in text, name
        assert not any(each.message_id in text for each in found if each.message_id != only)
        assert heading in text
        assert any(operation.replace("=", ":") in str(bar.get("value")) for bar in listed.find("input", name="q")), "kept"


def test_numbers_link_to_their_messages(sqlite_database: QueueDatabase) -> None:
    page, found = retried(sqlite_database, 3)
    table(sqlite_database, "error").send([acknowledgement(found[0].pk), row("m-1", at=LATER)])
    client = client_of("viewer")
    links = [link for link in Markup(client.get(page).content.decode()).links if "operation=" in link]
    listed = {link: Markup(client.get(link).content.decode()) for link in links}
    by_status = {link: [each for each in found if f"{FAILURES}{each.pk}/" in markup.links] for link, markup in listed.items()}
    assert sorted(len(each) for each in by_status.values()) == [1, 1, 1]
    assert all("retried or changed by an operation" in markup.text() for markup in listed.values())


def test_later_retry_takes_over_its_messages(sqlite_database: QueueDatabase) -> None:
    page, found = retried(sqlite_database, 2)
    table(sqlite_database, "error").send([row("m-0", at=LATER), row("m-1", at=LATER)])
    assert results(page)["Failed again"] == "2"
    answer = client_of("writer").post(f"{FAILURES}retry/?ids={found[0].pk}", CONFIRMED)
    again = answer.headers["Location"]
    assert results(again) == {"Pending": "1", "Handled": "0", "Failed again": "0"}
    assert results(page)["Failed again"] == "1"
    assert (
        "1 message belongs to a later operation, or is no longer in the index."
        in Markup(client_of("viewer").get(page).content.decode()).text()
    )


@pytest.mark.parametrize(("kind", "status"), [("archive", FailureStatus.ARCHIVED), ("delete", FailureStatus.DELETED)])
def test_other_operations_list_their_messages(sqlite_database: QueueDatabase, kind: str, status: FailureStatus) -> None:
    install(sqlite_database)
    found = fail(sqlite_database, [row("m-0"), row("m-1")])
    query = "&".join(f"ids={each.pk}" for each in found)
    client_of("admin").post(f"{FAILURES}{kind}/?{query}", {**CONFIRMED, "typed": "2"})
    operation = Operation.objects.get()
    assert set(FailedMessage.objects.filter(operation=operation.pk).values_list("status", flat=True)) == {status}
    links = Markup(client_of("viewer").get(f"{ADMIN}operation/{operation.pk}/").content.decode()).links
    assert {f"{FAILURES}{each.pk}/" for each in found} <= set(links)


def test_message_group_and_audit_log_link_to_the_operation(sqlite_database: QueueDatabase) -> None:
    page, found = retried(sqlite_database, 2)
    group = found[0].exception_group
    client = client_of("viewer")
    table(sqlite_database, "error").send([row("m-0", at=LATER)])
    for path in (f"{FAILURES}{found[0].pk}/", f"{FAILURES}group/{group}/", f"{ADMIN}operatoraction/"):
        assert page in Markup(client.get(path).content.decode()).links, path
    assert OperatorAction.objects.get().operation_id == Operation.objects.get().pk


def test_retry_into_a_paused_or_unmanned_queue_is_hinted(queue_database: QueueDatabase) -> None:
    install(queue_database)
    (found,) = fail(queue_database, [row("m-0")])
    client, preview = client_of("writer"), f"{FAILURES}retry/?ids={found.pk}"

    def hints(page: str) -> list[str]:
        return re.findall("“[^”]*” (?:has no live worker|is paused by [^:]*): retries wait there[.]", text_of(page))

    def text_of(page: str) -> str:
        return Markup(client.get(page).content.decode()).text()

    no_worker, paused = "“Sales” has no live worker: retries wait there.", "“Sales” is paused by anna: retries wait there."
    assert hints(preview) == [no_worker]
    assert hints(preview.replace("retry", "archive")) == []
    worker = instance(threads={"Sales": 1}, silent=-timedelta(hours=1))
    assert hints(preview) == []
    Instance.objects.update(paused=True, paused_since=FAILED_AT, paused_by="anna", threads={})
    assert hints(preview) == [paused]
    page = client.post(preview, CONFIRMED).headers["Location"]
    assert hints(page) == [paused]
    worker.delete()
    assert hints(page) == [no_worker]
    table(queue_database, "error").send([acknowledgement(found.pk)])
    assert hints(page) == [], "no message waits"


def test_page_takes_few_statements(sqlite_database: QueueDatabase) -> None:
    page, _found = retried(sqlite_database, 60)
    client = client_of("viewer")
    assert client.get(page).status_code == 200
    with CaptureQueriesContext(sqlite_database.connection) as queries:
        assert client.get(page).status_code == 200
    assert len(queries) <= 15, len(queries)


def test_texts_are_stored_in_english_and_shown_in_the_language_of_the_reader(queue_database: QueueDatabase) -> None:
    install(queue_database)
    middleware = queue_database.settings.MIDDLEWARE
    queue_database.settings.MIDDLEWARE = [*middleware, "django.middleware.locale.LocaleMiddleware"]
    group = fail(queue_database, [row("m-0")])[0].exception_group
    assert group is not None
    german = {"accept-language": "de"}
    url = f"{FAILURES}archive/?group={group}&classifier=exception"
    with translation.override("de"):
        assert client_of("viewer").post(url, CONFIRMED, headers=german).status_code == 403
        assert client_of("writer").post(url, CONFIRMED, headers=german).status_code == 302

    operation = Operation.objects.get()
    denied, done = OperatorAction.objects.order_by("pk")
    event = Event.objects.get(kind="operation_completed")
    title = FailureGroup.objects.get(pk=group).title
    assert operation.description == event.subject == f"the group “{title}”; unresolved"
    assert done.target == denied.target == f"the group “{title}”"
    assert denied.reason == "You need the permission “Can archive failed messages, and bring them back”."

    with translation.override("en"):
        texts = {
            page: Markup(client_of("viewer").get(f"{ADMIN}{page}/", headers=german).content.decode()).text()
            for page in ("operation", f"operation/{operation.pk}", "operatoraction")
        }
    assert [page for page, text in texts.items() if "die Gruppe" not in text] == []
    assert "unresolved" not in texts["operation"]
    assert "You need the permission" not in texts["operatoraction"]
