"""The messages of a queue, and one message: escaped, paginated, reachable under any name."""

from __future__ import annotations

import uuid
from urllib.parse import quote, unquote

import pytest

from sqlqueue_app.browsing.messages import read_page
from sqlqueue_app.dashboard.page import path_of, queue_of_path
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.status.queues import KnownQueue, QueueKind
from sqlqueue_app.tables.rows import NewRow
from tests.support.databases import QueueDatabase
from tests.support.filling import HOSTILE, count, install, message, row, table
from tests.support.pages import OVERVIEW, Markup, client_of

NAMES = [
    "Sales",
    "Sales.Web-1",
    "a/b",
    "a/1",
    "/",
    "..",
    ".",
    "add",
    "a_2Fb",
    "a_b",
    "50%",
    "%2F",
    "a?b#c",
    "a b+c",
    "[dbo].[x]",
    "quo\"te's",
    "Köln 東京",
    "back\\slash",
    HOSTILE,
]


def get(path: str, kind: str = "writer") -> tuple[int, str]:
    answer = client_of(kind).get(path)
    return answer.status_code, answer.content.decode()


@pytest.mark.parametrize("name", NAMES)
def test_queue_of_any_name_is_linked_from_the_overview(sqlite_database: QueueDatabase, name: str) -> None:
    install(sqlite_database, ENDPOINTS={name: {"CALLBACKS": False}, "a": {"CALLBACKS": False}})
    table(sqlite_database, name).send([message()])
    _status, html = get(OVERVIEW)
    here = Markup(html).find("tr", **{"data-key": f"queue {name}"})
    assert here

    address = f"{OVERVIEW}{quote(path_of(name), safe='')}/"
    assert address in _normal(Markup(html).links)
    status, page = get(address)
    assert status == 200
    assert Markup(page).find("tr", **{"data-row-version": "1"})
    (link,) = [link for link in Markup(page).links if link.partition("?")[0].endswith("/1/") and "/queue/" in link]
    status, one = get(link)
    assert status == 200
    assert name in Markup(one).text()


def _normal(links: list[str]) -> list[str]:
    return [OVERVIEW + quote(unquote(link.removeprefix(OVERVIEW).rstrip("/")), safe="") + "/" for link in links]


def test_names_have_distinct_paths() -> None:
    known = [KnownQueue(name, QueueAddress(name), QueueKind.MAIN, ()) for name in NAMES]

    assert len({path_of(name) for name in NAMES}) == len(NAMES)
    for queue in known:
        assert queue_of_path(path_of(queue.name), known) == queue
        assert "/" not in path_of(queue.name)


def test_name_typed_into_the_address_is_found(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database, ENDPOINTS={"sales_20": {"CALLBACKS": False}})

    assert get(f"{OVERVIEW}sales_20/")[0] == 200


def test_all_pages_are_linked(queue_database: QueueDatabase) -> None:
    install(queue_database)
    table(queue_database, "Sales").send([message() for _ in range(60)])
    seen: list[str] = []
    address = f"{OVERVIEW}Sales/"

    while address:
        _status, html = get(address)
        markup = Markup(html)
        seen += [str(known["data-row-version"]) for known in markup.find("tr") if "data-row-version" in known]
        following = markup.find("a", rel="next")
        address = f"{OVERVIEW}Sales/{following[0]['href']}" if following else ""

    assert len(seen) == len(set(seen)) == 60
    assert count(queue_database, "Sales") == 60


@pytest.mark.parametrize(
    "query",
    [
        "after=x",
        "after=-1",
        "after=99999999999999999999999",
        "after=1e3",
        "after=١",
        "size=7",
        "size=",
        "size=1000000",
        "after=&size=%00",
    ],
)
def test_invalid_query_string_shows_page_one(queue_database: QueueDatabase, query: str) -> None:
    install(queue_database)
    table(queue_database, "Sales").send([message() for _ in range(30)])

    status, html = get(f"{OVERVIEW}Sales/?{query}")

    rows = [known for known in Markup(html).find("tr") if "data-row-version" in known]
    assert status == 200
    assert len(rows) == 25
    assert rows[0]["data-row-version"] == str(read_page(table(queue_database, "Sales")).messages[0].row_version)


@pytest.mark.parametrize("size", [25, 50, 100])
def test_page_size_can_be_chosen(sqlite_database: QueueDatabase, size: int) -> None:
    install(sqlite_database)
    table(sqlite_database, "Sales").send([message() for _ in range(110)])

    _status, html = get(f"{OVERVIEW}Sales/?size={size}")

    assert len([known for known in Markup(html).find("tr") if "data-row-version" in known]) == size


def test_unknown_queue_returns_404(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)

    for address in (f"{OVERVIEW}auth_user/", f"{OVERVIEW}auth_user/1/"):
        status, html = get(address)
        assert status == 404
        assert "There is no queue “auth_user”" in Markup(html).text()


def test_missing_table_returns_404_with_the_remedy(queue_database: QueueDatabase) -> None:
    queue_database.configure(ENDPOINTS={"Sales": {"CALLBACKS": False}})

    for address in (f"{OVERVIEW}Sales/", f"{OVERVIEW}Sales/1/"):
        status, html = get(address)
        assert status == 404
        assert "python manage.py sqlqueue_install" in html


@pytest.mark.parametrize("number", ["1", "9223372036854775807", "9223372036854775808", "0", "1" * 100])
def test_missing_message_returns_404(queue_database: QueueDatabase, number: str) -> None:
    install(queue_database)

    status, html = get(f"{OVERVIEW}Sales/{number}/")

    assert status == 404
    assert "it was received or deleted" in html


def test_empty_queue_shows_how_to_send_a_message(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database, ENDPOINTS={"it's": {"CALLBACKS": False}})

    _status, html = get(f"{OVERVIEW}{quote(chr(105) + 't' + chr(39) + 's')}/")

    assert """python manage.py sqlqueue_send 'it'"'"'s' --type Example.Hello --body '{}'""" in Markup(html).text()


def test_hostile_messages_are_shown_as_text(queue_database: QueueDatabase) -> None:
    install(queue_database)
    hostile = {"NServiceBus.MessageId": HOSTILE, "NServiceBus.EnclosedMessageTypes": HOSTILE, "NServiceBus.MessageIntent": HOSTILE}
    texts: dict[str, str | None] = {**hostile, HOSTILE: HOSTILE, "NServiceBus.FailedQ": HOSTILE}
    rows = [row({**texts, "NServiceBus.ContentType": kind}, HOSTILE.encode()) for kind in ("application/json", "text/xml", HOSTILE)]
    poison = NewRow(str(uuid.uuid4()), HOSTILE, f'{{"a": "{HOSTILE}"}}'.encode())
    table(queue_database, "Sales").send([*rows, poison])

    pages = [get(f"{OVERVIEW}Sales/")[1]]
    pages += [get(f"{OVERVIEW}Sales/{each.row_version}/")[1] for each in read_page(table(queue_database, "Sales")).messages]

    for html in pages:
        assert "<script>" not in html
        assert HOSTILE in Markup(html).text()


def test_message_links_to_its_neighbours(queue_database: QueueDatabase) -> None:
    install(queue_database)
    table(queue_database, "Sales").send([message() for _ in range(3)])
    first, second, third = (each.row_version for each in read_page(table(queue_database, "Sales")).messages)

    markup = Markup(get(f"{OVERVIEW}Sales/{second}/")[1])

    assert [known["href"] for known in markup.find("a", rel="prev")] == [f"{OVERVIEW}Sales/{first}/"]
    assert [known["href"] for known in markup.find("a", rel="next")] == [f"{OVERVIEW}Sales/{third}/"]
    assert not Markup(get(f"{OVERVIEW}Sales/{first}/")[1]).find("a", rel="prev")
    assert not Markup(get(f"{OVERVIEW}Sales/{third}/")[1]).find("a", rel="next")
    assert count(queue_database, "Sales") == 3


def test_long_body_is_cut_and_its_size_is_shown(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    table(sqlite_database, "Sales").send([row(body=b"x" * 71_680)])

    text = Markup(get(f"{OVERVIEW}Sales/1/")[1]).text()

    assert "Cut: the first 64.0 KiB of 70.0 KiB are shown." in text
    assert "x" * 65_536 in text
    assert "x" * 65_537 not in text
