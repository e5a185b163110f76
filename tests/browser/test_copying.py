"""The buttons that copy the headers and the body of a message."""

from __future__ import annotations

import json

from tests.browser.conftest import Site
from tests.support.databases import QueueDatabase
from tests.support.filling import install, message, table

PAGE = "/admin/sqlqueue_app/queue/Sales/1/"


def test_headers_and_body_are_copied_unchanged(sqlite_database: QueueDatabase, site: Site) -> None:
    install(sqlite_database)
    row = message({"text": "<b>ü</b>\n"}, headers={"Tenant": "\u202e'\""})
    table(sqlite_database, "Sales").send([row])
    window = site.window("superuser")
    window.context.grant_permissions(["clipboard-read", "clipboard-write"])
    window.goto(PAGE)

    for label, place in (("Copy the headers", "sq-headers-text"), ("Copy the body", "sq-body-text")):
        window.click(f"text={label}")
        window.wait_for_selector(f'[data-copy-from="{place}"] [role=status]:has-text("Copied.")')
        copied = window.evaluate("navigator.clipboard.readText()")
        assert json.loads(copied) == json.loads(row.headers if label == "Copy the headers" else row.body)
    assert site.complaints == []
    assert site.barriers(window) == []


def test_copy_buttons_need_scripts_and_the_permission_for_bodies(sqlite_database: QueueDatabase, site: Site) -> None:
    install(sqlite_database)
    table(sqlite_database, "Sales").send([message()])
    window = site.window("superuser", scripts=False)
    window.goto(PAGE)
    assert "Copy the headers" not in window.inner_text("body")
    window = site.window("viewer")
    window.goto(PAGE)
    window.wait_for_selector("text=Copy the headers")
    assert "Copy the body" not in window.inner_text("body")
