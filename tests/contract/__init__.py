"""One suite for queue tables, run on each database and each layout."""

from __future__ import annotations
