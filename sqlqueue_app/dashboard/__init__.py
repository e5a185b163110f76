"""Admin pages over operations."""

from __future__ import annotations
