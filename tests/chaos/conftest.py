"""A bench on each database, without the handlers of other tests, and a ledger next to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.ledger_books import ledger_beside
from tests.support.bench import Bench
from tests.support.databases import DatabaseSession
from tests.support.other_databases import OtherDatabase
from tests.support.provisioning import PostgresqlProvider


@pytest.fixture
def ledger(bench: Bench, database_session: DatabaseSession) -> Iterator[OtherDatabase]:
    """For tests with `bench`: a share of the effects is also written there."""
    provider = database_session.provider("postgresql")
    assert isinstance(provider, PostgresqlProvider)
    with ledger_beside(provider) as made:
        yield made
