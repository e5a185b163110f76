"""Django's SQLite engine under another name."""

from __future__ import annotations

from django.db.backends.sqlite3 import base


class DatabaseWrapper(base.DatabaseWrapper):
    """The same database; only the name of the engine differs."""
