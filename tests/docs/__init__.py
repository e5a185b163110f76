"""The documentation is correct: its examples run and its links resolve."""

from __future__ import annotations
