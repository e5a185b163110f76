"""Live pages in tests: each test sees its own database, and its changes at once."""

from __future__ import annotations

import pytest

from sqlqueue_app.dashboard import page
from sqlqueue_app.dashboard.live import LiveAnswers


@pytest.fixture(autouse=True)
def no_answer_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute every answer again instead of caching it."""
    monkeypatch.setattr(page, "live_answers", LiveAnswers(part=0.0))
