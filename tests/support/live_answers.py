"""Pages that refresh themselves, in tests: each sees its own database, and at once what it has changed."""

from __future__ import annotations

import pytest

from sqlqueue_app.dashboard import page
from sqlqueue_app.dashboard.live import LiveAnswers


@pytest.fixture(autouse=True)
def no_answer_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer is made anew."""
    monkeypatch.setattr(page, "live_answers", LiveAnswers(part=0.0))
