"""Names of queues and endpoints in the addresses of pages. Any table name can be a queue's, slashes and dots included."""

from __future__ import annotations

import re
from collections.abc import Iterable

from django.contrib.admin.utils import quote, unquote

from sqlqueue_app.operations.known_queues import KnownQueue

_DOTS = re.compile(r"\.{1,2}\Z")
_QUOTED = re.compile("_[0-9A-F]{2}")
# What would end the part of a path, or be changed on its way.
_UNSAFE = re.compile(r"[/\\\x00-\x1f\x7f]")


def path_of(name: str) -> str:
    """The name as one part of a path: as it is wherever that works, else quoted as the admin quotes keys. No two share one."""
    if _DOTS.match(name):
        return name.replace(".", "_2E")
    return quote(name) if _UNSAFE.search(name) or _QUOTED.search(name) else name


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
