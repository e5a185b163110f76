"""Every URL of the app, taken from the URL configuration instead of a list, requires a permission."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from django.urls.resolvers import RegexPattern, RoutePattern

from sqlqueue_app.models import OperatorAction
from tests.support.bench import Bench
from tests.support.databases import QueueDatabase
from tests.support.failing import fail, failed_row
from tests.support.filling import install, message, row, table
from tests.support.pages import client_of
from tests.support.shapes import delayed_table
from tests.support.site_pages import site_paths

ARGUMENTS = {"StringConverter": "Sales", "IntConverter": "1", "UUIDConverter": str(uuid.UUID(int=1)), "PathConverter": "1"}


def addresses() -> Iterator[str]:
    """Each URL of the site that involves the app, with valid arguments."""
    yield from (path for path in _below(get_resolver(), "/") if "sqlqueue" in path)


def _below(resolver: URLResolver, start: str) -> Iterator[str]:
    for each in resolver.url_patterns:
        path = start + _part(each)
        if isinstance(each, URLResolver):
            yield from _below(each, path)
        elif isinstance(each, URLPattern):
            yield path


def _part(each: URLPattern | URLResolver) -> str:
    pattern = each.pattern
    if isinstance(pattern, RegexPattern):
        return ""
    assert isinstance(pattern, RoutePattern)
    text = str(pattern)
    for name, converter in pattern.converters.items():
        start, end = text.rindex("<", 0, text.index(f"{name}>")), text.index(f"{name}>") + len(name) + 1
        text = text[:start] + ARGUMENTS[type(converter).__name__] + text[end:]
    return text


@pytest.fixture
def shop(sqlite_database: QueueDatabase) -> QueueDatabase:
    install(sqlite_database)
    table(sqlite_database, "Sales").send([message()])
    return sqlite_database


def test_every_url_requires_a_permission(shop: QueueDatabase) -> None:
    found = sorted(set(addresses()))
    known = set(site_paths().values())
    assert len([path for path in found if path in known]) >= len(known) // 2, "the walk finds the pages of the permission matrix"
    anonymous, staff = client_of("anonymous"), client_of("staff")
    assert "/sqlqueue/metrics" in found
    for path in found:
        for method in ("get", "post"):
            for browser, closed in ((anonymous, {302, 401, 403, 404, 405}), (staff, {302, 401, 403, 404, 405})):
                answer = getattr(browser, method)(path)
                assert answer.status_code in closed, (path, method)
                if answer.status_code == 302:
                    assert "/login/" in answer["Location"] or browser is staff, (path, method, answer["Location"])
                assert b"Sales.PlaceOrder" not in answer.getvalue(), (path, method)
    assert not OperatorAction.objects.filter(result="done").exists()
    assert table(shop, "Sales").depth().waiting == 1


def test_user_without_permission_sees_no_bodies(sqlite_database: QueueDatabase) -> None:
    """No page, list or document shows the body of a waiting, failed or delayed message, or of one sent by a schedule."""
    secret = "B0DY-of-a-message"
    install(sqlite_database, SCHEDULES={"Sales": {"CRON": "0 2 * * *", "SEND": "Sales.Close", "BODY": {"text": secret}}})
    body = f'{{"text": "{secret}"}}'.encode()
    table(sqlite_database, "Sales").send([row({}, body)])
    (failed,) = fail(sqlite_database, [failed_row(body=body)])
    delayed_table(Bench(sqlite_database)).add("{}", body, datetime.now(UTC) + timedelta(hours=1))
    own = [path.replace(str(uuid.UUID(int=1)), str(failed.pk)) for path in addresses()]
    reader, admin = client_of("reader"), client_of("superuser")

    def shown_to(browser: Client, queries: tuple[str, ...]) -> Iterator[str]:
        urls = (path + query for path in sorted(set(own)) for query in queries)
        return (path for path in urls if secret.encode() in browser.get(path).getvalue())

    assert next(shown_to(admin, ("",)), None), "an admin sees bodies, so there are some to hide"
    assert list(shown_to(reader, ("", "?format=json"))) == []
