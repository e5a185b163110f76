"""What the dashboard has not yet. Each of these fails as long as it is missing, and must be taken out of here when it is there."""

from __future__ import annotations

import pytest

from tests.dashboard.pages import client_of
from tests.operations.filling import install
from tests.support.databases import QueueDatabase

ADMIN = "/admin/sqlqueue_app/"
MISSING = pytest.mark.xfail(strict=True, reason="not made yet")
PAGES = ("subscription/",)


@MISSING
@pytest.mark.parametrize("page", PAGES)
def test_pages(sqlite_database: QueueDatabase, page: str) -> None:
    install(sqlite_database)
    assert client_of("superuser").get(ADMIN + page).status_code == 200
