"""What these tests have: a bench on each database, with no handlers of other tests; and a ledger beside it."""

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
    """For the tests of `bench`: a part of the effects is written there, too."""
    provider = database_session.provider("postgresql")
    assert isinstance(provider, PostgresqlProvider)
    with ledger_beside(provider) as made:
        yield made
