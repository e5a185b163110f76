"""Answers shared by viewers of the same page: rendered once per set of permissions, never stale after an action."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.middleware.csrf import _does_token_match, get_token  # type: ignore[attr-defined]  # not public
from django.template.response import TemplateResponse
from django.test import Client, RequestFactory

from sqlqueue_app.dashboard import page as page_admin
from sqlqueue_app.dashboard.live import LIVE_SECONDS, MAX_KEPT, MAX_SECONDS, PART_OF_TIME, SNAPSHOT_SECONDS, LiveAnswers
from sqlqueue_app.status import delayed, queues
from sqlqueue_app.tables import listing
from tests.support.databases import QueueDatabase
from tests.support.filling import install, message, table
from tests.support.pages import OVERVIEW, client_of
from tests.support.tables import execute
from tests.support.waiting import join_all

LIVE = {"Sqlqueue-Live": "0"}
HALF = LIVE_SECONDS / 2
QUEUE = f"{OVERVIEW}Sales/"
DASHBOARD = "/admin/sqlqueue_app/dashboard/"


class Clock:
    """Seconds that the test advances."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(page_admin, "live_answers", LiveAnswers(clock=clock))
    return clock


def live(client: Client, page: str = QUEUE) -> Any:
    return client.get(page, headers=LIVE)


def test_page_is_rendered_once_for_users_with_equal_permissions(sqlite_database: QueueDatabase, clock: Clock) -> None:
    install(sqlite_database)
    first = live(client_of("viewer"))
    table(sqlite_database, "Sales").send([message()])
    clock.seconds = HALF - 0.1

    assert live(client_of("viewer")).content == first.content
    assert live(client_of("viewer"))["ETag"] == first["ETag"]
    assert live(client_of("superuser")).content != first.content, "a user with more permissions sees more"
    assert live(client_of("viewer"), f"{QUEUE}?period=1d").content != first.content
    clock.seconds = HALF
    assert live(client_of("viewer"))["ETag"] != first["ETag"]


def test_whole_page_is_never_cached(sqlite_database: QueueDatabase, clock: Clock) -> None:
    install(sqlite_database)
    client = client_of("viewer")
    before = client.get(QUEUE).content
    live(client)
    table(sqlite_database, "Sales").send([message()])
    assert client.get(QUEUE).content != before


def test_cached_answer_expires_before_the_next_refresh_after_an_action(sqlite_database: QueueDatabase, clock: Clock) -> None:
    """Another user's page is rendered just before the action; the acting user's page refreshes after its interval."""
    install(sqlite_database)
    client = client_of("superuser")
    html = client.get(QUEUE).content.decode()
    (interval,) = map(float, re.findall(r'data-live="(\d+)"', html))
    before = live(client)["ETag"]
    table(sqlite_database, "Sales").send([message()])
    clock.seconds += interval
    assert live(client)["ETag"] != before


def test_user_without_the_permission_gets_no_cached_answer(sqlite_database: QueueDatabase, clock: Clock) -> None:
    install(sqlite_database)
    assert live(client_of("viewer")).status_code == 200
    assert live(client_of("staff")).status_code == 403
    assert live(client_of("anonymous")).status_code == 302


def test_matching_etag_takes_no_query(sqlite_database: QueueDatabase, clock: Clock, django_assert_num_queries: Any) -> None:
    install(sqlite_database)
    client = client_of("viewer")
    first = live(client)
    again = {**LIVE, "If-None-Match": first["ETag"]}
    with django_assert_num_queries(0):
        nothing = client.get(QUEUE, headers=again)
    assert (nothing.status_code, nothing.content, nothing["ETag"]) == (304, b"", first["ETag"])
    assert nothing["Sqlqueue-Made"] == first["Sqlqueue-Made"]
    assert "no-store" in nothing["Cache-Control"]
    # a page that its user has reloaded since
    with django_assert_num_queries(0):
        assert client.get(QUEUE, headers={"Sqlqueue-Live": str(float(first["Sqlqueue-Made"]) + 3)}).status_code == 204
    # a request with the ETag but without a time stamp
    for who, status in (("staff", 403), ("anonymous", 302)):
        assert client_of(who).get(QUEUE, headers=again).status_code == status


def test_revoked_permission_takes_effect_when_the_page_expires(sqlite_database: QueueDatabase, clock: Clock) -> None:
    install(sqlite_database)
    client = client_of("viewer")
    again = {**LIVE, "If-None-Match": live(client)["ETag"]}
    session = client.session
    session.delete(session.session_key)
    assert client.get(QUEUE, headers=again).status_code == 304, "a 304 reveals nothing new"
    assert client.get(QUEUE, headers=LIVE).status_code == 302, "content needs the permission"
    clock.seconds = MAX_SECONDS
    live(client_of("viewer"))
    assert client.get(QUEUE, headers=again).status_code == 302


def test_errors_are_not_cached(sqlite_database: QueueDatabase, clock: Clock) -> None:
    install(sqlite_database)
    assert live(client_of("viewer"), f"{OVERVIEW}Nowhere/").status_code == 404
    sqlite_database.configure(ENDPOINTS={"Nowhere": {"CALLBACKS": False}})
    install(sqlite_database, ENDPOINTS={"Nowhere": {"CALLBACKS": False}})
    assert live(client_of("viewer"), f"{OVERVIEW}Nowhere/").status_code == 200


@pytest.fixture
def counted_tables(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The counted tables, in order."""
    tables: list[str] = []
    original = listing.snapshot_queues

    def recorded(alias: str, addresses: Any, limit: int) -> Any:
        tables.extend(each.table for each in addresses)
        return original(alias, addresses, limit)

    monkeypatch.setattr(queues, "snapshot_queues", recorded)
    return tables


def test_pages_share_their_snapshots_of_queues(sqlite_database: QueueDatabase, clock: Clock, counted_tables: list[str]) -> None:
    install(sqlite_database)
    execute(sqlite_database, 'CREATE TABLE "Other" AS SELECT * FROM "Sales"')
    client = client_of("viewer")
    live(client, DASHBOARD)
    of_settings = set(counted_tables)
    counted_tables.clear()
    clock.seconds = SNAPSHOT_SECONDS - 0.1
    live(client, "/admin/sqlqueue_app/endpoint/")
    list_of_queues = live(client, OVERVIEW)
    assert "Sales" in of_settings
    assert set(counted_tables).isdisjoint(of_settings), "the list also counts queues that are not in the settings"
    assert b"Sales" in list_of_queues.content

    client.get(OVERVIEW)
    assert of_settings <= set(counted_tables), "loading a whole page counts them again"
    counted_tables.clear()
    clock.seconds = SNAPSHOT_SECONDS + 0.1
    live(client, f"{DASHBOARD}?period=1d")
    assert set(counted_tables) == of_settings


def test_pages_share_their_snapshots_of_delayed_tables(
    sqlite_database: QueueDatabase, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(sqlite_database)
    sizes: list[int] = []
    original = listing.snapshot_delayed

    def recorded(alias: str, addresses: Any, limit: int) -> Any:
        sizes.append(len(addresses))
        return original(alias, addresses, limit)

    monkeypatch.setattr(delayed, "snapshot_delayed", recorded)
    client = client_of("viewer")
    live(client, DASHBOARD)
    live(client, OVERVIEW)
    assert [number for number in sizes if number] == [1]
    client.get(OVERVIEW)
    assert [number for number in sizes if number] == [1, 1], "loading a whole page counts them again"


# --- the cache alone --------------------------------------------------------------------------------------------------------------


class _Anonymous:
    """A user who may do nothing."""

    def has_perm(self, _name: str) -> bool:
        return False


def request_for(path: str) -> HttpRequest:
    request = RequestFactory().get(path)
    request.user = _Anonymous()  # type: ignore[assignment]
    return request


def page_of(request: HttpRequest) -> Callable[[], HttpResponseBase]:
    def make() -> HttpResponseBase:
        response = TemplateResponse(request, [], {"live_seconds": 10})
        response.content = b"made"
        return response

    return make


def test_concurrent_request_waits_for_the_answer() -> None:
    answers, made, begun, go_on = LiveAnswers(clock=lambda: 0.0), [], threading.Event(), threading.Event()
    found: list[bytes] = []

    def fetch() -> None:
        request = request_for("/page/")

        def make() -> HttpResponseBase:
            made.append(1)
            begun.set()
            assert go_on.wait(60)
            return page_of(request)()

        answer = answers.answer(request, make)
        assert isinstance(answer, HttpResponse)
        found.append(answer.content)

    threads = [threading.Thread(target=fetch) for _ in range(5)]
    threads[0].start()
    assert begun.wait(60)
    for thread in threads[1:]:
        thread.start()
    go_on.set()
    join_all(threads)
    assert (made, found) == ([1], [b"made"] * 5)


def test_each_form_has_the_csrf_token_of_its_user() -> None:
    answers, first, second = LiveAnswers(clock=lambda: 0.0), request_for("/page/"), request_for("/page/")
    form = b'<form><input type="hidden" name="csrfmiddlewaretoken" value="%s"></form>'

    def make() -> HttpResponseBase:
        response = TemplateResponse(first, [], {"live_seconds": 10})
        response.content = form % get_token(first).encode()
        return response

    answers.answer(first, make)
    answer = answers.answer(second, make)

    assert isinstance(answer, HttpResponse)
    (token,) = re.findall(rb'value="([^"]+)"', answer.content)
    assert answer.content == form % token
    assert _does_token_match(token.decode(), second.META["CSRF_COOKIE"])
    assert not _does_token_match(token.decode(), first.META["CSRF_COOKIE"])


def test_error_is_raised_and_the_next_request_retries() -> None:
    answers, request = LiveAnswers(clock=lambda: 0.0), request_for("/page/")

    def fail_once() -> HttpResponseBase:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        answers.answer(request, fail_once)
    assert answers.answer(request, page_of(request)).status_code == 200


def test_cache_has_a_bounded_size() -> None:
    answers = LiveAnswers(clock=lambda: 0.0)
    for number in range(MAX_KEPT * 3):
        request = request_for(f"/page/?n={number}")
        answers.answer(request, page_of(request))
    assert len(answers._answers) <= MAX_KEPT


# --- the time budget, and the time of the data ------------------------------------------------------------------------------------


class Costly:
    """Pages that take the given seconds to render; `made` lists the path of each rendering."""

    def __init__(self, clock: Clock, *, now: float = 1_000_000.0) -> None:
        self.clock = clock
        self.now = now
        self.answers = LiveAnswers(clock=clock, now=lambda: self.now + clock.seconds)
        self.made: list[str] = []

    def fetch(self, path: str, *, seconds: float = 0.0, **headers: str) -> HttpResponse:
        request = request_for(path)
        request.META.update({f"HTTP_{name.upper()}": value for name, value in headers.items()})

        def make() -> HttpResponseBase:
            self.made.append(path)
            self.clock.seconds += seconds
            return page_of(request)()

        answer = self.answers.answer(request, make)
        assert isinstance(answer, HttpResponse)
        return answer


def test_expensive_pages_are_rendered_less_often() -> None:
    costly = Costly(Clock())
    cost = 0.2
    kept_for = cost / PART_OF_TIME
    assert HALF < kept_for < MAX_SECONDS
    costly.fetch("/page/", seconds=cost)
    costly.clock.seconds = kept_for - 0.001
    costly.fetch("/page/")
    assert costly.made == ["/page/"]
    costly.clock.seconds = kept_for
    costly.fetch("/page/")
    assert costly.made == ["/page/"] * 2


def test_all_open_pages_share_the_time_budget() -> None:
    costly = Costly(Clock())
    for number in range(3):
        costly.fetch(f"/{number}/", seconds=0.1)
    # the third accounts for all; 15 s is the next expiry of pages of that cost
    costly.clock.seconds = 0.2 / PART_OF_TIME - 0.001
    costly.fetch("/2/")
    assert costly.made == ["/0/", "/1/", "/2/"]
    costly.clock.seconds += MAX_SECONDS * 3
    costly.fetch("/2/", seconds=0.1)
    kept_for = costly.answers._known(request_for("/2/")).until - costly.clock.seconds
    assert kept_for <= 0.1 / PART_OF_TIME + 0.001, "pages that are no longer open take no time"


def test_page_is_refreshed_within_the_maximum_time() -> None:
    costly = Costly(Clock())
    costly.fetch("/page/", seconds=MAX_SECONDS)
    costly.clock.seconds += MAX_SECONDS
    costly.fetch("/page/")
    assert len(costly.made) == 2


def test_each_answer_states_the_time_of_its_data() -> None:
    costly = Costly(Clock())
    first = costly.fetch("/page/")
    costly.clock.seconds = HALF - 0.1
    kept = costly.fetch("/page/", sqlqueue_live=first["Sqlqueue-Made"])
    same = costly.fetch("/page/", sqlqueue_live=first["Sqlqueue-Made"], if_none_match=kept["ETag"])
    assert float(first["Sqlqueue-Made"]) == costly.now - SNAPSHOT_SECONDS
    assert (kept.status_code, kept["Sqlqueue-Made"]) == (200, first["Sqlqueue-Made"])
    assert (same.status_code, same["Sqlqueue-Made"]) == (304, first["Sqlqueue-Made"])
    assert costly.made == ["/page/"]


def test_page_is_never_replaced_by_an_older_one() -> None:
    """Another user's page is rendered before an action; the acting user's page is newer, in any process."""
    costly = Costly(Clock())
    costly.fetch("/page/", seconds=1.0)
    costly.clock.seconds = 2.0
    mine = f"{costly.now + 2.0:.6f}"
    assert costly.fetch("/page/", sqlqueue_live=mine).status_code == 204
    costly.clock.seconds = MAX_SECONDS
    assert costly.fetch("/page/", sqlqueue_live=mine).status_code == 200


@pytest.mark.parametrize("stamp", ["", "1", "nan", "inf", "-inf", "1e400", "nonsense", "\x00", "9999999999"])
def test_any_time_stamp_returns_a_page(stamp: str) -> None:
    costly = Costly(Clock())
    costly.fetch("/page/")
    assert costly.fetch("/page/", sqlqueue_live=stamp).status_code == 200
