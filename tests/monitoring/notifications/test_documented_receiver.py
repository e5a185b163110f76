"""The documented receiver accepts our requests and no others."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from sqlqueue_app.monitoring.webhooks import new_secret, signed_headers
from tests.support.databases import ROOT
from tests.support.doc_pages import blocks


@pytest.fixture
def is_genuine() -> Callable[[str, dict[str, str], bytes], bool]:
    (example,) = [each for each in blocks(ROOT / "docs" / "howto" / "notifications.md") if each.file == "shop/webhooks.py"]
    namespace: dict[str, Callable[[str, dict[str, str], bytes], bool]] = {}
    exec(compile(example.text, example.place, "exec"), namespace)
    return namespace["is_genuine"]


def test_documented_receiver_accepts_only_our_requests(is_genuine: Callable[[str, dict[str, str], bytes], bool]) -> None:
    secret, body, now = new_secret(), b'{"type": "sqlqueue.test"}', datetime.now(UTC)
    headers = signed_headers(secret, "id", now, body)
    assert is_genuine(secret, headers, body)
    assert is_genuine(secret, {**headers, "webhook-signature": f"v1,other {headers['webhook-signature']}"}, body)
    assert not is_genuine(secret, headers, body + b" ")
    assert not is_genuine(new_secret(), headers, body)
    assert not is_genuine(secret, {**headers, "webhook-id": "another"}, body)
    assert not is_genuine(secret, signed_headers(secret, "id", now - timedelta(minutes=6), body), body)
