"""A database engine that wraps another one, as monitoring packages bring them."""

from __future__ import annotations
