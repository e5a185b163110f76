"""Every page: no inline code, labelled tables, the admin's frame, any language, any time zone."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

import django
import pytest
from django.db import connections
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import translation
from pytest_django import Settings

from sqlqueue_app.dashboard.formats import breakable
from tests.support.databases import ROOT, QueueDatabase
from tests.support.filling import install, instance, message, row, table
from tests.support.pages import OVERVIEW, Markup, client_of
from tests.support.postgresql import ThrowAwayServer

INSTANCES = "/admin/sqlqueue_app/instance/"
PAGES = [
    OVERVIEW,
    f"{OVERVIEW}Sales/",
    f"{OVERVIEW}Sales/1/",
    f"{OVERVIEW}Sales/2/",
    f"{OVERVIEW}Sales.Priority/",
    f"{OVERVIEW}nothing/",
]


@pytest.fixture
def filled(sqlite_database: QueueDatabase) -> QueueDatabase:
    install(sqlite_database)
    instance()
    instance(name="there", host="there", callback_queue="Sales.there", silent=timedelta(minutes=5))
    failed = message(headers={"NServiceBus.FailedQ": "Sales"})
    table(sqlite_database, "Sales").send([failed, row("null", b"\x00"), *(message() for _ in range(30))])
    return sqlite_database


@pytest.mark.parametrize("page", PAGES)
def test_pages_have_no_inline_code(filled: QueueDatabase, page: str) -> None:
    assert Markup(client_of("viewer").get(page).content.decode()).inline == []


@pytest.mark.parametrize("page", PAGES[:5])
def test_tables_have_captions_and_scopes(filled: QueueDatabase, page: str) -> None:
    markup = Markup(client_of("viewer").get(page).content.decode())

    # The menu of the admin contains other tables.
    ours = markup.find("table", role="table")
    assert len(ours) <= len(markup.find("caption"))
    headings = [known for known in markup.find("th") if known.get("role")]
    assert all(known.get("scope") in ("col", "row") for known in headings)
    assert bool(ours) == bool(headings)


@pytest.mark.parametrize("page", PAGES)
def test_frame_of_the_admin_is_kept(filled: QueueDatabase, page: str) -> None:
    html = client_of("viewer").get(page).content.decode()
    markup = Markup(html)

    assert "skip-to-content-link" in html
    assert markup.find("nav", **{"aria-label": "Breadcrumbs"})
    assert "/admin/" in markup.links
    assert "/admin/sqlqueue_app/" in markup.links
    if page != OVERVIEW:
        assert OVERVIEW in markup.links
    assert bool(markup.find("ol", **{"class": "breadcrumbs"})) == (django.VERSION >= (6, 1))
    assert len(markup.find("h1")) == 1


def test_icons_are_hidden_from_screen_readers_and_have_a_label(filled: QueueDatabase) -> None:
    html = client_of("viewer").get(OVERVIEW).content.decode()

    icons = re.findall(r'<svg class="sq-icon"([^>]*)>.*?</svg>([^<]*)', html, re.DOTALL)
    assert icons
    assert all('aria-hidden="true"' in attributes and word.strip() for attributes, word in icons)


def test_style_sheet_uses_only_the_colours_of_the_admin() -> None:
    css = (ROOT / "sqlqueue_app/static/sqlqueue_app/dashboard.css").read_text(encoding="utf-8")

    values = re.findall(r"(?:color|background|border[a-z-]*|outline):([^;]+);", css)
    assert values
    assert not [value for value in values if re.search(r"#[0-9a-f]{3}|rgb|hsl", value)]


class WithNonce:
    """Set a nonce on each request, as django-csp does."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        request.csp_nonce = "n0nce"  # type: ignore[attr-defined]
        return self.get_response(request)


def test_style_sheet_has_the_nonce_of_the_policy(filled: QueueDatabase, settings: Settings) -> None:
    settings.MIDDLEWARE = [f"{__name__}.WithNonce", *settings.MIDDLEWARE]

    links = Markup(client_of("viewer").get(OVERVIEW).content.decode()).find("link", rel="stylesheet")

    (ours,) = [known for known in links if "dashboard.css" in str(known["href"])]
    assert ours["nonce"] == "n0nce"


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("language", ["de", "ar", "ja"])
def test_pages_exist_in_other_languages(filled: QueueDatabase, settings: Settings, page: str, language: str) -> None:
    settings.MIDDLEWARE = [*settings.MIDDLEWARE[:1], "django.middleware.locale.LocaleMiddleware", *settings.MIDDLEWARE[1:]]

    # The middleware leaves its language active in the thread.
    with translation.override("en"):
        answer = client_of("viewer").get(page, headers={"accept-language": language})

    assert answer.status_code == (404 if page.endswith("nothing/") else 200)
    assert f'lang="{language}"' in answer.content.decode()
    assert Markup(answer.content.decode()).inline == []


@pytest.mark.parametrize("use_tz", [True, False])
def test_times_use_the_zone_of_the_site_with_utc_as_title(filled: QueueDatabase, settings: Settings, use_tz: bool) -> None:
    settings.USE_TZ = use_tz
    settings.TIME_ZONE = "Asia/Kolkata"
    sent = row({"NServiceBus.TimeSent": "2026-11-20 12:00:00:000000 Z"})
    table(filled, "Sales.Priority").send([sent])

    markup = Markup(client_of("viewer").get(f"{OVERVIEW}Sales.Priority/").content.decode())

    (time,) = markup.find("time")
    assert time == {"datetime": "2026-11-20T12:00:00.000Z", "title": "2026-11-20 12:00:00 UTC"}
    assert "2026-11-20 17:30:00" in markup.text()


@pytest.mark.parametrize(("zone", "shown"), [("America/New_York", "0001-01-01 00:00:00"), ("Asia/Tokyo", "9999-12-31 23:59:59")])
def test_times_at_the_ends_of_the_calendar_are_in_utc(filled: QueueDatabase, settings: Settings, zone: str, shown: str) -> None:
    settings.TIME_ZONE = zone
    table(filled, "Sales.Priority").send([row({"NServiceBus.TimeSent": f"{shown}:000000 Z"})])

    assert shown in Markup(client_of("viewer").get(f"{OVERVIEW}Sales.Priority/").content.decode()).text()


def test_atomic_requests_take_no_write_lock(filled: QueueDatabase, settings: Settings) -> None:
    connections.settings["default"]["ATOMIC_REQUESTS"] = True
    client = client_of("viewer")
    try:
        with CaptureQueriesContext(filled.connection) as queries:
            assert client.get(OVERVIEW).status_code == 200
    finally:
        connections.settings["default"]["ATOMIC_REQUESTS"] = False

    assert not [query["sql"] for query in queries if query["sql"].startswith(("BEGIN", "SAVEPOINT"))]


@pytest.mark.parametrize("page", [*PAGES[:3], INSTANCES, f"{INSTANCES}1/change/"])
def test_unavailable_database_returns_503(
    postgresql_server: ThrowAwayServer, postgresql_database: QueueDatabase, page: str
) -> None:
    install(postgresql_database)
    client = client_of("viewer")
    assert client.get(OVERVIEW).status_code == 200
    postgresql_server.stop()
    try:
        answer = client.get(page)
    finally:
        postgresql_server.start()
        connections.close_all()

    assert answer.status_code == 503
    assert answer["Retry-After"]
    assert "The database cannot be reached" in answer.content.decode()
    assert Markup(answer.content.decode()).inline == []


@pytest.mark.parametrize("page", [OVERVIEW, INSTANCES])
def test_unavailable_login_database_returns_503(filled: QueueDatabase, page: str) -> None:
    client: Client = client_of("viewer")
    path = connections.settings["default"]["NAME"]
    connections.close_all()
    connections.settings["default"]["NAME"] = "/nonexistent/nothing.sqlite3"
    connections["default"].settings_dict["NAME"] = "/nonexistent/nothing.sqlite3"
    try:
        answer = client.get(page)
    finally:
        connections.close_all()
        connections.settings["default"]["NAME"] = path
        connections["default"].settings_dict["NAME"] = path

    assert answer.status_code == 503
    assert "/nonexistent" not in answer.content.decode()


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("Sales.OrderPlaced", "Sales.<wbr>OrderPlaced"),
        ("Sales.Orders+Placed_late", "Sales.<wbr>Orders+<wbr>Placed_<wbr>late"),
        ("0.5 s", "0.5 s"),
        ("10.0.0.1", "10.0.0.1"),
        ("...", "..."),
        ("X" * 130, "<wbr>".join(["X" * 60, "X" * 60, "X" * 10])),
        ("<b>a.b</b>", "&lt;b&gt;a.<wbr>b&lt;/b&gt;"),
        ("a.'b'", "a.&#x27;b&#x27;"),
    ],
)
def test_names_break_at_their_dots(text: str, html: str) -> None:
    assert breakable(text) == html
