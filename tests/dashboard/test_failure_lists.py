"""Lists of failed messages and groups: actions of each row, selection of a whole page, the summary of a group."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from sqlqueue_app.messages.failure_groups import deterministic_guid
from sqlqueue_app.models import FailedMessage, FailureStatus
from tests.support.databases import QueueDatabase
from tests.support.error_rows import failed
from tests.support.failing import fail, statuses
from tests.support.filling import install, row, table
from tests.support.pages import Markup, client_of, page_at

FAILURES = "/admin/sqlqueue_app/failedmessage/"
GROUP = deterministic_guid("Message Type", "Shop.PlaceOrder")


def page(path: str = "", kind: str = "writer") -> Markup:
    return page_at(path if path.startswith("/") else FAILURES + path, kind)


def labels(shown: Markup, message: FailedMessage) -> list[str]:
    """The labels of the links in the row of a message."""
    found = [str(each.get("aria-label", "")) for each in shown.find("a")]
    return [each.removesuffix(f": {message.message_id}") for each in found if each.endswith(f": {message.message_id}")]


@pytest.mark.parametrize(
    ("status", "path", "expected"),
    [
        (FailureStatus.UNRESOLVED, "messages/", ["Retry", "Edit…", "Archive"]),
        (FailureStatus.UNRESOLVED, f"group/{GROUP}/", ["Retry", "Edit…", "Archive"]),
        (FailureStatus.ARCHIVED, "archived/", ["Unarchive"]),
        (FailureStatus.RETRY_ISSUED, "pending/", ["Mark as resolved"]),
        (FailureStatus.RESOLVED, "resolved/", []),
    ],
)
def test_row_offers_the_actions_of_its_status(
    sqlite_database: QueueDatabase, status: FailureStatus, path: str, expected: list[str]
) -> None:
    install(sqlite_database)
    found = fail(sqlite_database, [failed("m-1"), failed("m-2")])
    FailedMessage.objects.update(status=status)
    shown = page(path)
    assert [labels(shown, each) for each in found] == [expected, expected]


def test_row_shows_why_actions_are_denied(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    found = fail(sqlite_database, [failed("m-1")])
    shown = page("messages/", "viewer")
    assert labels(shown, found[0]) == []
    reasons = [each["title"] for each in shown.find("button", type="button") if each.get("title")]
    assert len(reasons) == 3
    assert all(str(each).startswith("You need the permission") for each in reasons)


def test_unreadable_row_can_only_be_archived(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    (found,) = fail(sqlite_database, [row("no json", b"x")])
    shown = page("unreadable/")
    assert labels(shown, found) == ["Archive"]
    assert "This row cannot be read as a failed message." in shown.text()


def test_action_of_a_row_returns_to_the_list(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    found = fail(sqlite_database, [failed("m-1"), failed("m-2")])
    shown = page("messages/?q=endpoint:Sales&select=page")
    (link,) = [each for each in shown.links if "/archive/" in each and str(found[0].pk) in each]
    client = client_of("writer")
    hidden = {str(each["name"]): each["value"] for each in Markup(client.get(link).content.decode()).find("input", type="hidden")}
    answer = client.post(link, {**{name: str(value) for name, value in hidden.items()}, "confirmed": "1"})
    assert answer.headers["Location"].startswith(f"{FAILURES}messages/?q=endpoint%3ASales")
    assert "select" not in answer.headers["Location"]
    assert statuses(*found) == ["ARCHIVED", "UNRESOLVED"]


@pytest.mark.parametrize("back", ["https://evil.example/", "//evil.example/", "/admin/"])
def test_action_does_not_redirect_to_other_sites(sqlite_database: QueueDatabase, back: str) -> None:
    install(sqlite_database)
    (found,) = fail(sqlite_database, [failed("m-1")])
    answer = client_of("writer").post(f"{FAILURES}archive/", {"ids": str(found.pk), "back": back, "confirmed": "1"})
    assert answer.headers["Location"] == f"{FAILURES}{found.pk}/"


@pytest.mark.parametrize(("path", "status"), [("messages/", FailureStatus.UNRESOLVED), ("pending/", FailureStatus.RETRY_ISSUED)])
def test_link_selects_all_messages_of_a_page(sqlite_database: QueueDatabase, path: str, status: FailureStatus) -> None:
    install(sqlite_database)
    fail(sqlite_database, [failed(f"m-{number}") for number in range(27)])
    FailedMessage.objects.update(status=status)
    shown = page(f"{path}?size=25")
    boxes = shown.find("input", type="checkbox", name="ids")
    assert (len(boxes), sum("checked" in each for each in boxes)) == (25, 0)
    assert "With all 27 that match:" in shown.text()
    (link,) = [each for each in shown.links if "select=page" in each]
    selected = page(f"{path}{link}")
    boxes = selected.find("input", type="checkbox", name="ids")
    assert (len(boxes), sum("checked" in each for each in boxes)) == (25, 25)
    # The selection still applies to the shown messages.
    assert selected.find("div", id="content-main")[0].get("data-live") is None
    assert [each for each in selected.links if each.endswith("?size=25")]
    (following,) = selected.find("a", rel="next")
    assert "select" not in str(following["href"])


def test_many_selected_messages_are_posted(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    found = fail(sqlite_database, [failed(f"m-{number}") for number in range(120)])
    client = client_of("writer")
    answer = client.post(f"{FAILURES}archive/", {"only": "ids", "ids": [str(each.pk) for each in found]})
    hidden = Markup(answer.content.decode()).find("input", type="hidden", name="ids")
    assert len(hidden) == 120
    assert "Archive (120)" in Markup(answer.content.decode()).text()
    assert not FailedMessage.objects.filter(status=FailureStatus.ARCHIVED).exists()


def test_times_in_lists_are_relative(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    fail(sqlite_database, [failed("m-1", at=datetime.now(UTC) - timedelta(hours=3, minutes=5))])
    for path in ("messages/", ""):
        shown = page(path)
        assert "3 h ago" in shown.text()
        assert shown.find("time")[0]["title"]


# --- groups -------------------------------------------------------------------------------------------------------------------


def test_row_of_a_group_acts_on_the_whole_group(queue_database: QueueDatabase) -> None:
    install(queue_database)
    rows = [failed("m-1"), failed("m-2"), failed("m-3", NServiceBus_EnclosedMessageTypes="Shop.Other")]
    found = fail(queue_database, rows)
    shown = page("?by=type")
    links = {str(each.get("aria-label")): str(each["href"]) for each in shown.find("a") if each.get("aria-label")}
    assert {"Retry: Shop.PlaceOrder", "Archive: Shop.PlaceOrder", "Retry: Shop.Other", "Archive: Shop.Other"} <= links.keys()
    assert "Archive (2)" in page(links["Archive: Shop.PlaceOrder"]).text()
    answer = client_of("writer").post(links["Archive: Shop.PlaceOrder"], {"confirmed": "1"})
    assert answer.headers["Location"].startswith(f"{FAILURES}?by=type")
    assert statuses(*found) == ["ARCHIVED", "ARCHIVED", "UNRESOLVED"]


def test_actions_of_a_group_keep_the_filter_of_the_list(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    fail(sqlite_database, [failed("m-1"), failed("m-2", NServiceBus_ProcessingEndpoint="Billing")])
    shown = page("?by=type&endpoint=Billing")
    (link,) = [str(each["href"]) for each in shown.find("a") if each.get("aria-label") == "Archive: Shop.PlaceOrder"]
    assert "Archive (1)" in page(link).text()
    # A selection has at most two groups; dropping a third would select more than is shown.
    shown = page(f"?by=type&and=endpoint&group={GROUP}")
    assert not [each for each in shown.find("a") if str(each.get("aria-label", "")).startswith("Archive: ")]


def test_actions_of_a_pair_apply_to_both_groups(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    fail(sqlite_database, [failed("m-1"), failed("m-2", NServiceBus_ProcessingEndpoint="Billing")])
    shown = page("?by=type&and=endpoint")
    archive = [str(each["href"]) for each in shown.find("a") if str(each.get("aria-label", "")).startswith("Archive: ")]
    assert len(archive) == 2
    assert all("Archive (1)" in page(link).text() for link in archive)


@pytest.mark.parametrize("kind", ["viewer", "reader"])
def test_group_shows_why_actions_are_denied(sqlite_database: QueueDatabase, kind: str) -> None:
    install(sqlite_database)
    fail(sqlite_database, [failed("m-1")])
    shown = page("", kind)
    assert not [link for link in shown.links if "/retry/" in link or "/archive/" in link]
    assert "You need the permission “Can retry failed messages”." in shown.text()


def test_group_page_shows_its_numbers_and_exception(queue_database: QueueDatabase) -> None:
    install(queue_database)
    now = datetime.now(UTC)
    rows = [failed(f"m-{hours}", at=now - timedelta(hours=hours, minutes=1)) for hours in (30, 5, 2)]
    fail(queue_database, rows)
    shown = page(f"group/{GROUP}/")
    text = shown.text()
    assert "Messages 3" in text
    assert "1 d ago" in text.partition("First failure")[2].partition("Last failure")[0]
    assert "2 h ago" in text.partition("Last failure")[2].partition("Exception")[0]
    assert "shop.OutOfStock" in text.partition("Latest exception")[2].partition("Search")[0]
    (trend,) = shown.find("svg", role="img")
    assert trend["aria-label"] == "2 failures in 24 hours; 0 in the last 2 h"


def test_group_without_messages_shows_a_hint(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    fail(sqlite_database, [failed("m-1")])
    FailedMessage.objects.update(status=FailureStatus.ARCHIVED)
    assert "No matching messages." in page(f"group/{GROUP}/").text()
    assert table(sqlite_database, "error").depth().waiting == 1
