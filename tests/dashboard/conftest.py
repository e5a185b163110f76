"""Fixtures of all dashboard tests."""

from __future__ import annotations

from tests.support.live_answers import no_answer_is_kept

__all__ = ["no_answer_is_kept"]
