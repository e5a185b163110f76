"""`queue`: an empty queue table, once per product and layout; `database` and `layout` describe the case."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pytest_django import DjangoDbBlocker, Settings

from sqlqueue_app.tables.queue import QueueTable
from tests.support.databases import DatabaseSession, QueueDatabase, open_database
from tests.support.tables import cases, make_table


@pytest.fixture(params=cases(), ids="-".join)
def case(
    request: pytest.FixtureRequest, database_session: DatabaseSession, settings: Settings, django_db_blocker: DjangoDbBlocker
) -> Iterator[tuple[QueueDatabase, str]]:
    """A clean database, and the layout of its queue tables."""
    vendor, layout = request.param
    with open_database(vendor, database_session, settings, django_db_blocker) as database:
        yield database, layout


@pytest.fixture
def database(case: tuple[QueueDatabase, str]) -> QueueDatabase:
    """The clean database of this case."""
    return case[0]


@pytest.fixture
def layout(case: tuple[QueueDatabase, str]) -> str:
    """The layout of this case, for make_table()."""
    return case[1]


@pytest.fixture
def queue(database: QueueDatabase, layout: str) -> QueueTable:
    """An empty table named Sales."""
    return make_table(database, layout)
