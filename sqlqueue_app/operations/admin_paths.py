"""Names of queues and endpoints as parts of the addresses of the admin pages."""

from __future__ import annotations

import re

from django.contrib.admin.utils import quote

_DOTS = re.compile(r"\.{1,2}\Z")
_QUOTED = re.compile("_[0-9A-F]{2}")
# What would end the part of a path, or be changed on its way.
_UNSAFE = re.compile(r"[/\\\x00-\x1f\x7f]")


def path_of(name: str) -> str:
    """The name as one part of a path: as it is wherever that works, else quoted as the admin quotes keys. No two share one."""
    if _DOTS.match(name):
        return name.replace(".", "_2E")
    return quote(name) if _UNSAFE.search(name) or _QUOTED.search(name) else name


def text_of_path(path: str) -> str:
    """The name that a part of a path means where nobody knows which names there are: the reverse of `path_of`."""
    return _QUOTED.sub(lambda found: chr(int(found[0][1:], 16)), path)
