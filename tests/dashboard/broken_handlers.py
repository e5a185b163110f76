"""Handlers of a project that cannot be imported."""

from __future__ import annotations

raise RuntimeError("broken_handlers cannot be imported")
