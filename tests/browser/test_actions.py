"""Every action for a reader, a writer and an admin: done through the pages without scripts, or refused with the reason."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from django.contrib.admin import site as admin_site
from playwright.sync_api import Locator, Page, Route

from sqlqueue_app.dashboard.page import PageAdmin
from sqlqueue_app.dashboard.registration import ADMINS
from sqlqueue_app.models import ActionResult, FailureStatus, OperatorAction
from tests.browser.conftest import Site
from tests.browser.walks import FILES, WALKS, Scene, Walk, create_scene
from tests.support.databases import QueueDatabase
from tests.support.pages import Markup
from tests.support.roles import ACTIONS, VIEWS, has

ADMIN = "/admin/sqlqueue_app/"
ROLES = ("reader", "writer", "admin")
# The text that describes a disabled button, or else the text after the button.
REASON = "e => (document.getElementById(e.getAttribute('aria-describedby')) ?? e.nextElementSibling)?.textContent ?? ''"

TARGET = "e => e.href || (e.hasAttribute('formaction') ? e.formAction : e.form.action)"


@pytest.fixture
def scene(sqlite_database: QueueDatabase) -> Scene:
    return create_scene(sqlite_database)


def go(window: Page, scene: Scene, page: str) -> None:
    window.goto(ADMIN + page.format(**scene.ids))


def button(window: Page, scene: Scene, label: str, within: str) -> Locator:
    """The button, or link styled as one, on the open page."""
    buttons = window.locator(within.format(**scene.ids)).locator("a.sq-button, button.sq-button")
    return buttons.filter(has_text=re.compile(rf"^\s*{re.escape(label)}\s*$")).first


def take(window: Page, scene: Scene, walk: Walk, check: Callable[[str], None]) -> None:
    """Do a walk with its permission; `check` is called with a name for each confirmation page."""
    go(window, scene, walk.page)
    for name in walk.chosen:
        window.check(f"input[name=ids][value='{scene.ids[name]}']")
    for name, value in walk.parameters.items():
        window.fill(f"#sq-{name}", value)
    with window.expect_navigation():
        button(window, scene, walk.label, walk.within).click()
    for step in range(walk.steps):
        confirmed = window.locator("form.sq-form button[name=confirmed]")
        assert confirmed.count() == 1, (walk, window.inner_text("#content"))
        check(f"{walk.name} {step}")
        fill_in(window, walk, is_first=step == 0)
        with window.expect_navigation():
            confirmed.click()


def fill_in(window: Page, walk: Walk, *, is_first: bool) -> None:
    if not is_first:
        # The second of two pages shows the input of the first.
        assert "changed" in " ".join(window.locator(".sq-changes ins").all_inner_texts())
        return
    for name, value in walk.fields.items():
        if window.locator(f"select#sq-{name}").count():
            window.select_option(f"#sq-{name}", value)
        else:
            window.fill(f"#sq-{name}", value)
    if window.locator("#sq-typed").count():
        window.fill("#sq-typed", window.inner_text("label[for=sq-typed] strong"))


def refused(window: Page, above: Page, scene: Scene, page: str, buttons: Iterable[tuple[str, str]]) -> None:
    """Assert that these buttons of a page, given as label and place, are disabled and show the reason.

    Their addresses, which an admin finds on the same page, are refused too.
    """
    go(window, scene, page)
    go(above, scene, page)
    for label, within in buttons:
        here = button(window, scene, label, within)
        assert here.count() == 1, (page, label)
        assert here.is_disabled(), (page, label)
        reason = here.evaluate(REASON)
        assert "You need the permission" in reason, (page, label)
        address = button(above, scene, label, within).evaluate(TARGET)
        answer = window.context.request.get(address)
        assert answer.status == 403, (address, answer.status)


@pytest.mark.parametrize("role", ROLES)
def test_every_action_works_with_its_permission_and_is_refused_without(site: Site, scene: Scene, role: str) -> None:
    window, above = site.window(role, scripts=False), site.window("admin", scripts=False)
    mirror = site.window("admin")
    mirror.goto(ADMIN + "operation/")
    barriers: dict[str, list[str]] = {}

    def check(name: str) -> None:
        # An admin sees every page. The accessibility check needs scripts, so it runs on a copy in another window.
        if role == "admin" and name not in barriers:
            mirror.set_content(window.content())
            barriers[name] = site.barriers(mirror)

    lacking: dict[str, set[tuple[str, str]]] = {}
    for walk in WALKS:
        if not has(role, ACTIONS[walk.name]):
            lacking.setdefault(walk.page, set()).add((walk.label, walk.within))
    for page, buttons in lacking.items():
        refused(window, above, scene, page, buttons)
    for walk in WALKS:
        if has(role, ACTIONS[walk.name]):
            before = OperatorAction.objects.count()
            take(window, scene, walk, check)
            # The admin capitalizes the first letter of every message.
            assert walk.says.casefold() in window.inner_text("ul.messagelist").casefold(), walk
            assert walk.effect(scene), walk
            (action,) = OperatorAction.objects.order_by("-pk")[: OperatorAction.objects.count() - before]
            assert (action.user_name, action.permission, action.result) == (role, ACTIONS[walk.name], ActionResult.DONE), walk
            if role == "admin":
                log = window.context.request.get(ADMIN + "operatoraction/").text()
                (target,) = Markup(log.partition('data-key="operatoraction')[2].partition("</tr>")[0]).links
                assert window.context.request.get(target).status == 200, (walk, target)
    assert site.complaints == []
    assert {name: found for name, found in barriers.items() if found} == {}


@pytest.mark.parametrize("role", ROLES)
def test_every_file_is_saved_with_its_permission(site: Site, scene: Scene, role: str) -> None:
    window, above = site.window(role, scripts=False), site.window("admin", scripts=False)
    for name, page, label in FILES:
        if not has(role, VIEWS[name]):
            refused(window, above, scene, page, [(label, "#content")])
            continue
        go(window, scene, page)
        with window.expect_download() as download:
            button(window, scene, label, "#content").click()
        assert download.value.path().stat().st_size > 0, name


def test_every_action_has_a_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    acting = set()
    made = PageAdmin.action_view

    def noted(pages: PageAdmin, route: str, view: Any, name: str) -> Any:
        acting.add(f"{pages.opts.model_name}_{name}")
        return made(pages, route, view, name)

    monkeypatch.setattr(PageAdmin, "action_view", noted)
    for model, _ in ADMINS:
        pages = admin_site.get_model_admin(model)
        if isinstance(pages, PageAdmin):
            pages.get_urls()
    assert {walk.name for walk in WALKS} == acting == ACTIONS.keys()


CLICK_TWICE = """button => {
    button.click();
    setTimeout(() => { button.click(); console.log("clicked twice"); });
}"""


def test_double_click_confirms_once(site: Site, scene: Scene) -> None:
    window = site.window("admin")
    held: list[Route] = []
    clicked: list[object] = []

    # The answer must not replace the page before the second click. Either event may come first.
    def hold(route: Route) -> None:
        held.append(route)
        if clicked:
            route.continue_()

    def let_go(message: object) -> None:
        clicked.append(message)
        if held:
            held[-1].continue_()

    go(window, scene, "failedmessage/{deleted}/")
    with window.expect_navigation():
        button(window, scene, "Delete", "#content").click()
    window.route("**/delete/**", hold)
    window.on("console", let_go)
    with window.expect_navigation():
        window.locator("form.sq-form button[name=confirmed]").evaluate(CLICK_TWICE)
    assert "1 message deleted." in window.inner_text("ul.messagelist")
    assert scene.status("deleted") == FailureStatus.DELETED
    assert len(held) == 1
    assert site.complaints == []
