"""What the pipeline is to do and does not yet: what begins to pass must lose its mark."""

from __future__ import annotations

from pathlib import Path

import pytest

from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.pipeline.options import options_of
from tests.operations.filling import install
from tests.support.databases import QueueDatabase


@pytest.mark.xfail(raises=ConfigurationError, strict=True, reason="the messages of an audit queue cannot be left there yet")
def test_peek_only(sqlite_database: QueueDatabase, tmp_path: Path) -> None:
    install(sqlite_database, ENDPOINTS={"Sales": {"AUDIT_QUEUE": "audit"}})
    assert options_of(get_settings(), lake=str(tmp_path), peek_only=True).peek_only
