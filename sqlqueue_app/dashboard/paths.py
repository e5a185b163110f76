"""Names of queues and endpoints in the addresses of pages. Any table name can be a queue's, slashes and dots included."""

from __future__ import annotations

from collections.abc import Iterable

from django.contrib.admin.utils import unquote

from sqlqueue_app.operations.admin_paths import path_of, text_of_path
from sqlqueue_app.operations.known_queues import KnownQueue

__all__ = ["name_of_path", "path_of", "queue_of_path", "text_of_path"]


def queue_of_path(path: str, queues: Iterable[KnownQueue]) -> KnownQueue | None:
    """The known queue that the part of a path names: as `path_of` wrote it, or as somebody typed the bare name."""
    by_name = {queue.name: queue for queue in queues}
    found = name_of_path(path, by_name)
    return None if found is None else by_name[found]


def name_of_path(path: str, names: Iterable[str]) -> str | None:
    """The one of these names that the part of a path means, as in `queue_of_path`."""
    known = set(names)
    by_path = {path_of(name): name for name in known}
    return by_path.get(path) or next((name for name in (path, unquote(path)) if name in known), None)
