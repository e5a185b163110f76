"""Actions on failed messages in the admin: previewed on a page, done once, and recorded with the user."""

from __future__ import annotations

import json
import uuid
from functools import partial
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib.admin import site
from django.contrib.auth.models import Permission, User
from django.test import RequestFactory

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard import actions
from sqlqueue_app.dashboard.failure_actions import failure_buttons, page_of
from sqlqueue_app.dashboard.page import PageAdmin
from sqlqueue_app.failures.operations import request_operation
from sqlqueue_app.failures.selection import FailureSelection
from sqlqueue_app.messages import headers as names
from sqlqueue_app.models import ActionResult, FailedMessage, FailureStatus, Operation, OperatorAction
from sqlqueue_app.status.events import Actor
from tests.support.databases import QueueDatabase
from tests.support.failing import fail, failed_row, install_sales, statuses
from tests.support.filling import count, table
from tests.support.pages import Markup, client_of

FAILURES = "/admin/sqlqueue_app/failedmessage/"
ACTIONS = ("retry", "archive", "unarchive", "complete", "delete", "edit")
GROUP = uuid.UUID("876ec959-1e70-3f04-943c-0af496b82403")
JSON = {names.CONTENT_TYPE: "application/json"}


@pytest.fixture
def shop(sqlite_database: QueueDatabase) -> QueueDatabase:
    install_sales(sqlite_database)
    return sqlite_database


def ids(*failures: FailedMessage) -> str:
    return urlencode([("ids", each.pk) for each in failures])


def form_of(html: str) -> dict[str, str]:
    """The hidden fields of the form and its button."""
    hidden = Markup(html).find("input", type="hidden")
    return {str(each["name"]): str(each["value"]) for each in hidden if each["name"] != "csrfmiddlewaretoken"} | {"confirmed": "1"}


def test_confirmation_page_previews_without_changes(shop: QueueDatabase) -> None:
    failures = fail(shop, [failed_row(), failed_row(), failed_row(failed_q="Nowhere")])

    html = client_of("writer").get(f"{FAILURES}retry/?{ids(*failures)}").content.decode()

    text = Markup(html).text()
    assert "Messages 3 chosen messages Will be retried 2 to Sales 2 Will stay as they are 1" in text
    assert "Nowhere" in text
    assert "Retry (2)" in text
    assert Markup(html).inline == []
    assert count(shop, "error") == 3
    assert not OperatorAction.objects.exists()


def test_chosen_message_that_has_failed_again_since_the_preview_is_left_out(shop: QueueDatabase) -> None:
    (failure,) = fail(shop, [failed_row("m")])
    client, page = client_of("writer"), f"{FAILURES}delete/?{ids(failure)}"
    form = form_of(client.get(page).content.decode())
    request_operation(get_settings(), "retry", FailureSelection(ids=(failure.pk,)), actor=Actor("anna"))
    fail(shop, [failed_row("m", more={names.RETRY_UNIQUE_MESSAGE_ID: str(failure.pk)})])

    assert client.post(page, form).status_code == 409
    assert (statuses(failure), count(shop, "error")) == (["UNRESOLVED"], 1)


def test_confirmed_action_is_done_and_recorded(shop: QueueDatabase) -> None:
    failures = fail(shop, [failed_row(), failed_row()])
    client = client_of("writer")
    page = f"{FAILURES}retry/?endpoint=Sales"
    FailedMessage.objects.update(endpoint="Sales")

    answer = client.post(page, form_of(client.get(page).content.decode()))

    assert answer.status_code == 302
    assert answer["Location"] == f"/admin/sqlqueue_app/operation/{Operation.objects.get().pk}/"
    assert statuses(*failures) == ["RETRY_ISSUED", "RETRY_ISSUED"]
    assert (count(shop, "Sales"), count(shop, "error")) == (2, 0)
    action = OperatorAction.objects.get()
    assert (action.user_name, action.action, action.count, action.result) == ("writer", "retry", 2, ActionResult.DONE)
    assert (action.permission, action.target, action.address) == ("retry", "endpoint Sales", "127.0.0.1")
    operation = Operation.objects.get()
    assert action.operation == operation
    assert (operation.user_name, operation.user_key) == ("writer", str(User.objects.get(username="writer").pk))


def test_operation_page_lists_skipped_messages(shop: QueueDatabase) -> None:
    failures = fail(shop, [failed_row(), failed_row(failed_q="Nowhere")])
    client = client_of("writer")

    answer = client.post(f"{FAILURES}retry/?{ids(*failures)}", {"confirmed": "1"})

    operation = Operation.objects.get()
    assert answer["Location"] == f"/admin/sqlqueue_app/operation/{operation.pk}/"
    html = client.get(answer["Location"]).content.decode()
    assert '<li class="warning">1 message sent for retry. 1 was skipped.</li>' in html
    assert "Nowhere" in Markup(html).text()


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("kind", ["viewer", "reader"])
def test_reader_cannot_act(shop: QueueDatabase, kind: str, action: str) -> None:
    failures = fail(shop, [failed_row(more=JSON)])
    client = client_of(kind)
    page = f"{FAILURES}{action}/?{ids(*failures)}"

    assert client.get(page).status_code == 403
    assert client.post(page, {"confirmed": "1", "seen": "1", "headers": "{}", "body": "{}"}).status_code == 403

    denied = OperatorAction.objects.get()
    assert (denied.result, denied.user_name, denied.action) == (ActionResult.DENIED, kind, action)
    assert statuses(*failures) == ["UNRESOLVED"]
    assert count(shop, "error") == 1
    page_of_message = Markup(client.get(f"{FAILURES}{failures[0].pk}/").content.decode())
    assert not [link for link in page_of_message.links if link.startswith(f"{FAILURES}{action}/")]
    assert "You need the permission" in page_of_message.text()


def test_each_action_needs_its_own_permission(shop: QueueDatabase) -> None:
    failures = fail(shop, [failed_row()])
    client = client_of("viewer")
    user = User.objects.get(username="viewer")
    for action, codename in (("retry", "retry"), ("archive", "archive"), ("delete", "delete_message")):
        page = f"{FAILURES}{action}/?{ids(*failures)}"
        assert client.get(page).status_code == 403
        user.user_permissions.add(Permission.objects.get(codename=codename))
        assert client.get(page).status_code == 200


def test_buttons_follow_the_status(shop: QueueDatabase) -> None:
    failures = fail(shop, [failed_row(more=JSON) for _ in range(4)])
    for failure, status in zip(
        failures[1:], (FailureStatus.ARCHIVED, FailureStatus.RETRY_ISSUED, FailureStatus.RESOLVED), strict=True
    ):
        FailedMessage.objects.filter(pk=failure.pk).update(status=status)
    request = RequestFactory().get("/")
    client_of("superuser")
    request.user = User.objects.get(username="superuser")
    admin = site.get_model_admin(FailedMessage)
    assert isinstance(admin, PageAdmin)

    def labels(message: FailedMessage | None = None, **filters: Any) -> list[str]:
        return [each.label for each in failure_buttons(request, admin, FailureSelection(**filters), message)]

    assert [labels(each, ids=(each.pk,)) for each in FailedMessage.objects.order_by("row_version")] == [
        ["Retry", "Edit and retry", "Archive", "Delete"],
        ["Unarchive", "Delete"],
        ["Mark as resolved"],
        [],
    ]
    assert labels() == ["Retry", "Archive", "Unarchive", "Mark as resolved", "Delete"]
    assert labels(statuses=(FailureStatus.ARCHIVED,)) == ["Unarchive", "Delete"]


@pytest.mark.parametrize(
    ("filters", "page"),
    [
        ({"ids": (GROUP,)}, f"{GROUP}/"),
        ({"ids": (GROUP, uuid.UUID(int=1))}, "messages/"),
        ({"group": GROUP}, f"group/{GROUP}/"),
        ({"group": GROUP, "text": "x"}, f"messages/?group={GROUP}&text=x"),
        ({}, "messages/"),
        ({"endpoint": "Sales"}, "messages/?endpoint=Sales"),
    ],
)
def test_action_returns_to_its_object(shop: QueueDatabase, filters: dict[str, Any], page: str) -> None:
    admin = site.get_model_admin(FailedMessage)
    assert isinstance(admin, PageAdmin)

    assert page_of(admin, FailureSelection(**filters)) == FAILURES + page


def test_unfiltered_action_needs_the_typed_count(shop: QueueDatabase) -> None:
    fail(shop, [failed_row(), failed_row()])
    client = client_of("writer")

    assert client.post(f"{FAILURES}retry/", {"confirmed": "1"}).status_code == 400
    assert client.post(f"{FAILURES}retry/", {"confirmed": "1", "typed": "3"}).status_code == 400
    assert client.post(f"{FAILURES}retry/", {"confirmed": "1", "typed": "2"}).status_code == 302
    assert count(shop, "Sales") == 2


def test_failures_since_the_preview_are_left_out(shop: QueueDatabase) -> None:
    fail(shop, [failed_row(), failed_row()])
    client, page = client_of("writer"), f"{FAILURES}archive/?queue=Sales"
    form = form_of(client.get(page).content.decode())
    later = fail(shop, [failed_row()])

    answer = client.post(page, form)

    assert answer["Location"] == f"{FAILURES}messages/?queue=Sales"
    assert statuses(*later) == ["UNRESOLVED"]
    assert [each.count for each in OperatorAction.objects.all()] == [2]


def test_form_without_a_checked_box_does_nothing(shop: QueueDatabase) -> None:
    fail(shop, [failed_row()])
    client = client_of("writer")

    for sent in ({"only": "ids"}, {"only": "ids", "confirmed": "1", "typed": "1"}):
        answer = client.post(f"{FAILURES}delete/", sent)
        assert "No message is chosen." in answer.content.decode()
    assert count(shop, "error") == 1


@pytest.mark.parametrize(
    "query",
    ["ids=x", "group=%00", "statuses=nonsense&ids=", "ids=3c3c90ba-3dda-41bb-b5ab-460449a8f80e", "since=9999999", "text=%22"],
)
@pytest.mark.parametrize("action", ACTIONS)
def test_odd_query_strings_are_answered(shop: QueueDatabase, action: str, query: str) -> None:
    fail(shop, [failed_row()])
    client = client_of("superuser")

    assert client.get(f"{FAILURES}{action}/?{query}").status_code in (200, 400, 409)
    assert client.post(f"{FAILURES}{action}/?{query}", {"confirmed": "1"}).status_code in (200, 400, 409)
    assert count(shop, "error") == 1


def test_large_operation_is_requested(shop: QueueDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "request_operation", partial(request_operation, batch=2))
    fail(shop, [failed_row() for _ in range(5)])
    client = client_of("writer")

    answer = client.post(f"{FAILURES}retry/?statuses=unresolved&message_type=PlaceOrder", {"confirmed": "1"})

    operation = Operation.objects.get()
    assert OperatorAction.objects.get().result == ActionResult.REQUESTED
    html = client.get(answer["Location"]).content.decode()
    markup = Markup(html)
    (progress,) = markup.find("progress")
    assert (progress["value"], progress["max"]) == ("2", "5")
    assert "No worker is alive" in markup.text()
    assert "run_sqlqueue_worker" in markup.text()
    assert operation.done == 2


def test_error_queue_of_servicecontrol_is_refused_with_the_reason(shop: QueueDatabase) -> None:
    failures = fail(shop, [failed_row(more=JSON)])
    shop.configure(ERROR_QUEUE_OWNER="servicecontrol")
    client = client_of("writer")

    for action in ("retry", "delete", "edit"):
        answer = client.post(f"{FAILURES}{action}/?{ids(*failures)}", {"confirmed": "1"})
        assert answer.status_code == 409
        assert "belongs to ServiceControl" in answer.content.decode()
    assert client.post(f"{FAILURES}archive/?{ids(*failures)}", {"confirmed": "1"}).status_code == 302
    assert count(shop, "error") == 1


# --- edit and retry -----------------------------------------------------------------------------------------------------------


def test_edit_is_entered_reviewed_and_sent(shop: QueueDatabase) -> None:
    (failure,) = fail(shop, [failed_row(body=b'{"order": "<1>", "b": 2}', more={**JSON, "Custom": "old"})])
    client = client_of("writer")
    page = f"{FAILURES}edit/?{ids(failure)}"
    form = client.get(page).content.decode()
    assert "{&quot;order&quot;: &quot;&lt;1&gt;&quot;, &quot;b&quot;: 2}</textarea>" in form
    assert Markup(form).inline == []

    typed = {"headers": json.dumps({**JSON, "Custom": "new", names.REPLY_TO_ADDRESS: "x"}), "body": '{"order": "7",\r\n "b": 2}'}
    seen = client.post(page, {**form_of(form), **typed}).content.decode()
    text = Markup(seen).text()
    assert 'removed: − "order": "<1>",' in text
    assert 'added: + "order": "7",' in text
    assert "NServiceBus.ReplyToAddress" in text
    assert count(shop, "error") == 1

    answer = client.post(page, form_of(seen))

    assert answer.status_code == 302
    (row,) = table(shop, "Sales").peek(9)
    assert row.body == b'{"order": "7",\n "b": 2}'
    assert json.loads(row.headers or "")["Custom"] == "new"
    assert statuses(failure) == ["RETRY_ISSUED"]
    action = OperatorAction.objects.get()
    assert (action.action, action.result, action.permission) == ("edit", ActionResult.DONE, "edit_message")


def test_invalid_edit_keeps_the_input(shop: QueueDatabase) -> None:
    (failure,) = fail(shop, [failed_row(more=JSON)])
    client = client_of("writer")
    page = f"{FAILURES}edit/?{ids(failure)}"

    answer = client.post(page, {"headers": '{"NServiceBus.MessageId": "x"}', "body": "my text", "confirmed": "1", "seen": "1"})

    assert answer.status_code == 400
    assert "cannot be changed: NServiceBus.MessageId" in answer.content.decode()
    assert "my text" in answer.content.decode()
    assert count(shop, "error") == 1


def test_edit_of_a_message_that_failed_again_is_refused(shop: QueueDatabase) -> None:
    (failure,) = fail(shop, [failed_row(more=JSON)])
    client = client_of("writer")
    typed = {"headers": json.dumps(JSON), "body": "{}", "seen": "1", "confirmed": "1", "row_version": "99"}

    answer = client.post(f"{FAILURES}edit/?{ids(failure)}", typed)

    assert answer.status_code == 409
    assert "has failed again: open it" in answer.content.decode()
    assert OperatorAction.objects.get().result == ActionResult.FAILED


def test_bodies_need_their_own_permission(shop: QueueDatabase) -> None:
    (failure,) = fail(shop, [failed_row(body=b'{"secret": 1}', more=JSON)])
    client = client_of("viewer")
    user = User.objects.get(username="viewer")
    user.user_permissions.add(Permission.objects.get(codename="edit_message"))

    answer = client.get(f"{FAILURES}edit/?{ids(failure)}")

    assert answer.status_code == 403
    assert "secret" not in answer.content.decode()


def test_largest_editable_body_fits_into_a_form(shop: QueueDatabase) -> None:
    body = json.dumps("ä<" * 120_000, ensure_ascii=False)
    (failure,) = fail(shop, [failed_row(body=body.encode(), more=JSON)])
    client = client_of("writer")
    page = f"{FAILURES}edit/?{ids(failure)}"
    typed = {"headers": json.dumps(JSON), "body": body, "row_version": str(failure.row_version), "seen": "1", "confirmed": "1"}

    assert client.get(page).status_code == 200
    answer = client.post(page, urlencode(typed), content_type="application/x-www-form-urlencoded")

    assert answer.status_code == 302
    (row,) = table(shop, "Sales").peek(1, body_limit=1_000_000)
    assert row.body == body.encode()


def test_long_bodies_are_not_compared_line_by_line(shop: QueueDatabase) -> None:
    (failure,) = fail(shop, [failed_row(body=json.dumps([1] * 5_000).encode(), more=JSON)])
    typed = {"headers": json.dumps(JSON), "body": json.dumps([2] * 6_000)}

    seen = client_of("writer").post(f"{FAILURES}edit/?{ids(failure)}", typed)

    text = Markup(seen.content.decode()).text()
    assert "removed: − 5,002 lines" in text
    assert "added: + 6,002 lines, too many to be compared" in text
