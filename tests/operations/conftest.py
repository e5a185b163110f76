"""An error queue for tests of the index of failures."""

from __future__ import annotations

import pytest

from tests.operations.filling import install
from tests.support.databases import QueueDatabase


@pytest.fixture
def errors(queue_database: QueueDatabase) -> QueueDatabase:
    """A database with an empty error queue."""
    install(queue_database)
    return queue_database
