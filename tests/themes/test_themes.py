"""All pages work under themes that replace the admin's templates, with our parts and those of the theme."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.support.databases import QueueDatabase
from tests.support.failing import fail, failed_row
from tests.support.filling import install, instance, message, table
from tests.support.site_pages import site_paths


def test_every_page_works_under_unfold(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    instance()
    table(sqlite_database, "Sales").send([message(), message()])
    fail(sqlite_database, [failed_row(), failed_row()])
    environment = sqlite_database.child_environment(DJANGO_SETTINGS_MODULE="tests.themes.unfold_settings")

    walk = subprocess.run(
        [sys.executable, "-m", "tests.themes.walk"], env=environment, capture_output=True, text=True, check=False, timeout=200
    )

    assert walk.returncode == 0, walk.stderr
    pages = [json.loads(line) for line in walk.stdout.splitlines()]
    assert {page["name"] for page in pages} == set(site_paths())
    assert [page for page in pages if page["status"] >= 500] == []
    shown = [page for page in pages if page["status"] == 200 and page["type"].startswith("text/html")]
    assert len(shown) > 20
    parts = ("themed", "has_tabs", "has_way", "has_style")
    assert [page["name"] for page in shown if not all(page[part] for part in parts)] == []
