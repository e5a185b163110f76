"""Management commands."""

from __future__ import annotations
