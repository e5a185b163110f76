"""One queue: positions in it, the search, its charts."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from sqlqueue_app.browsing import messages
from sqlqueue_app.models import QueueSample
from tests.support.databases import QueueDatabase
from tests.support.filling import install, instance, message, table
from tests.support.pages import OVERVIEW, Markup, client_of

SALES = f"{OVERVIEW}Sales/"


def shown(query: str) -> tuple[list[int], str]:
    """The numbers of the messages on the page and its text."""
    answer = client_of("viewer").get(f"{SALES}?{query}")
    assert answer.status_code == 200
    html = answer.content.decode()
    return [int(found) for found in re.findall(r'data-row-version="(\d+)"', html)], Markup(html).text()


@pytest.fixture
def numbers(queue_database: QueueDatabase) -> list[int]:
    """The numbers of 60 messages; every seventh is for the tenant Zoë."""
    install(queue_database)
    sales = table(queue_database, "Sales")
    sales.send(message(headers={"Tenant": "Zoë/1" if number % 7 == 0 else "Bob"}) for number in range(60))
    return [each.row_version for each in sales.peek(100, body_limit=0)]


def test_page_shows_head_tail_or_a_position(numbers: list[int]) -> None:
    assert shown("")[0] == numbers[:25]
    assert shown("tail=1")[0] == numbers[-25:]
    assert shown("at=31")[0] == numbers[30:55]
    assert shown("at=999999")[0] == numbers[-25:]


def test_pages_link_forward_and_back(numbers: list[int]) -> None:
    client = client_of("viewer")

    def follow(page: str, rel: str) -> str:
        found = re.search(rf'href="\?([^"]*)" rel="{rel}"', client.get(page).content.decode())
        assert found is not None
        return f"{SALES}?{found[1].replace('&amp;', '&')}"

    second = follow(SALES, "next")
    assert shown(second.partition("?")[2])[0] == numbers[25:50]
    assert shown(follow(second, "prev").partition("?")[2])[0] == numbers[:25]
    last = follow(second, "last")
    assert shown(last.partition("?")[2])[0] == numbers[-25:]
    assert shown(follow(last, "prev").partition("?")[2])[0] == numbers[10:35]


def test_links_keep_the_search_and_the_period(numbers: list[int]) -> None:
    query = f"header=Bob&period=5m&after={numbers[0]}"
    links = Markup(client_of("viewer").get(f"{SALES}?{query}").content.decode()).links
    assert f"?{query}&size=50" in links
    assert f"?header=Bob&period=1d&after={numbers[0]}" in links


@pytest.mark.parametrize("wanted", ["Zoë/1", "tenant:zoë", "Tenant: Zoë", "zoë"])
def test_messages_are_found_by_headers(numbers: list[int], wanted: str) -> None:
    found, text = shown(f"header={wanted}")
    assert found == numbers[::7]
    assert "9 of 60 messages searched contain it." in text


def test_limited_search_can_be_continued(numbers: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "SEARCHED_ROWS", 40)
    found, text = shown("header=Zoë")
    assert found == numbers[:40:7]
    assert "6 of 40 messages" in text
    assert "Continue the search" in text
    assert shown(f"header=Zoë&after={numbers[39]}")[0] == numbers[42::7]
    assert "No match in the messages that were searched." in shown("header=nobody")[1]


def test_charts_have_a_text_summary(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    instance()
    now = datetime.now(UTC).replace(microsecond=0)
    for number in range(30):
        QueueSample.objects.create(
            queue="Sales",
            taken_at=now - timedelta(seconds=10 * (30 - number)),
            seconds=10,
            samples=1,
            waiting=number,
            most_waiting=number,
            head_age_seconds=90.0,
            exact=True,
            written=1000 + 20 * number,
        )
    markup = Markup(client_of("viewer").get(f"{SALES}?period=5m").content.decode())
    assert "messages: now 29, between 0 and 29, 14 on average." in markup.text() or "15 on average" in markup.text()
    assert "In: now 2.0/s, between 2.0/s and 2.0/s" in markup.text()
    assert "Out: now 1.9" in markup.text()
    assert "age: now 90.0 s" in markup.text()
    assert len([path for path in markup.find("path") if (path.get("d") or "").count("L") > 20]) == 4
    assert markup.inline == []
    assert "No samples in this period" in Markup(client_of("viewer").get(f"{OVERVIEW}error/").content.decode()).text()
