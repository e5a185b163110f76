"""Pages that refresh themselves: only their content is sent, with an ETag, and only after changes."""

from __future__ import annotations

import re

import pytest

from sqlqueue_app.dashboard.live import LiveAnswers
from sqlqueue_app.models import Instance
from tests.support.databases import QueueDatabase
from tests.support.failing import fail, failed_row
from tests.support.filling import install, instance, message, table
from tests.support.pages import OVERVIEW, Markup, client_of

PAGES = ("/admin/sqlqueue_app/dashboard/", OVERVIEW, f"{OVERVIEW}Sales/")
INSTANCES = "/admin/sqlqueue_app/instance/"
LIVE = {"Sqlqueue-Live": "1"}


@pytest.fixture
def filled(sqlite_database: QueueDatabase) -> QueueDatabase:
    install(sqlite_database)
    instance()
    return sqlite_database


@pytest.mark.parametrize("page", PAGES)
def test_only_the_content_is_sent(filled: QueueDatabase, page: str) -> None:
    client = client_of("viewer")
    whole, part = client.get(page).content.decode(), client.get(page, headers=LIVE).content.decode()
    assert 'id="content-main"' in part
    assert 'id="header"' in whole
    assert 'id="header"' not in part
    assert "<script" not in part
    scripts = [str(each["src"]).rpartition("/")[2] for each in Markup(whole).find("script", type="module")]
    assert scripts == (["live.js", "charts.js"] if page == PAGES[0] else ["live.js"])


@pytest.mark.parametrize("page", PAGES)
def test_unchanged_page_is_answered_with_304(filled: QueueDatabase, page: str) -> None:
    client = client_of("viewer")
    first = client.get(page, headers=LIVE)
    again = client.get(page, headers={**LIVE, "If-None-Match": first["ETag"]})
    assert (again.status_code, again.content, again["ETag"]) == (304, b"", first["ETag"])
    table(filled, "Sales").send([message()])
    changed = client.get(page, headers={**LIVE, "If-None-Match": first["ETag"]})
    assert changed.status_code == 200
    assert changed["ETag"] != first["ETag"]


@pytest.mark.parametrize("page", PAGES)
def test_badges_of_the_navigation_are_sent(filled: QueueDatabase, page: str) -> None:
    """The badges have the numbers of the whole page, including those that the page itself counts."""
    client = client_of("viewer")
    first = client.get(page, headers=LIVE)
    fail(filled, [failed_row(), failed_row()])
    whole = client.get(page).content.decode()
    part = client.get(page, headers={**LIVE, "If-None-Match": first["ETag"]}).content.decode()
    counted = [re.findall(r"<span id=.sq-counted-\w+. data-counted>.*</span>", html) for html in (whole, part)]
    assert "(2 unresolved failures)" in counted[0][1]
    assert counted[0] == counted[1]


def test_normal_request_always_returns_the_whole_page(filled: QueueDatabase) -> None:
    client = client_of("viewer")
    etag = client.get(OVERVIEW, headers=LIVE)["ETag"]
    answer = client.get(OVERVIEW, headers={"If-None-Match": etag})
    assert answer.status_code == 200
    assert "ETag" not in answer


def test_denied_user_gets_no_part_of_the_page(filled: QueueDatabase) -> None:
    assert client_of("staff").get(OVERVIEW, headers=LIVE).status_code == 403
    assert client_of("anonymous").get(OVERVIEW, headers=LIVE).status_code == 302


def test_page_states_the_time_of_its_data(filled: QueueDatabase) -> None:
    client = client_of("viewer")
    (stamp,) = (each["data-live-made"] for each in Markup(client.get(OVERVIEW).content.decode()).find("div", id="content-main"))
    first = client.get(OVERVIEW, headers={"Sqlqueue-Live": str(stamp)})
    again = client.get(OVERVIEW, headers={"Sqlqueue-Live": str(stamp), "If-None-Match": first["ETag"]})
    assert float(str(stamp)) <= float(first["Sqlqueue-Made"]) <= float(again["Sqlqueue-Made"])


def test_list_of_instances_refreshes_itself(filled: QueueDatabase) -> None:
    """It is Django's page; without JavaScript, it is still complete."""
    client = client_of("superuser")
    whole, part = client.get(INSTANCES).content.decode(), client.get(INSTANCES, headers=LIVE).content.decode()
    for html in (whole, part):
        (content,) = Markup(html).find("div", id="content-main")
        assert content["data-live"] == "10"
        assert [each["id"] for each in Markup(html).find("table", id="result_list")] == ["result_list"]
        assert len(Markup(html).find("form", id="changelist-search")) == 1
    assert 'id="header"' not in part
    assert "<script" not in part
    assert "live.js" in whole
    first = client.get(INSTANCES, headers=LIVE)
    assert client.get(INSTANCES, headers={**LIVE, "If-None-Match": first["ETag"]}).status_code == 304
    instance(name="there", pid=2, callback_queue=None)
    changed = client.get(INSTANCES, headers={**LIVE, "If-None-Match": first["ETag"]})
    assert (changed.status_code, "there" in changed.content.decode()) == (200, True)


def test_kept_list_of_instances_needs_its_own_permission(filled: QueueDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlqueue_app.dashboard.page.live_answers", LiveAnswers())
    assert client_of("reader").get(INSTANCES, headers=LIVE).status_code == 200
    assert client_of("viewer").get(INSTANCES, headers=LIVE).status_code == 403


def test_page_of_django_may_be_unchanged_too(filled: QueueDatabase) -> None:
    """This includes an empty list."""
    client, page = client_of("superuser"), INSTANCES
    Instance.objects.all().delete()
    first = client.get(page, headers=LIVE)
    again = client.get(page, headers={**LIVE, "If-None-Match": first["ETag"]})
    assert (first.status_code, again.status_code) == (200, 304)
