"""A database engine that wraps another one, as monitoring packages do."""

from __future__ import annotations
