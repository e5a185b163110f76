"""Queue tables on Django connections."""

from __future__ import annotations
