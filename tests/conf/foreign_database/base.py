"""An engine with an unsupported vendor."""

from __future__ import annotations

from django.db.backends.dummy import base


class DatabaseWrapper(base.DatabaseWrapper):
    """A database that cannot hold queues."""

    vendor = "oracle"
