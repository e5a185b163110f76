"""A database engine for a database that sqlqueue does not know."""

from __future__ import annotations
