"""The registered pages of the dashboard by name, each with a URL that fits its converters."""

from __future__ import annotations

import uuid
from functools import cache
from typing import Any

from django.contrib import admin
from django.urls import reverse

from sqlqueue_app.dashboard.page import PageAdmin

UNKNOWN = uuid.UUID("3c3c90ba-3dda-41bb-b5ab-460449a8f80e")
_ARGUMENTS: dict[str, Any] = {"StringConverter": "Sales", "IntConverter": 1, "UUIDConverter": UNKNOWN}


@cache
def site_pages() -> dict[str, tuple[PageAdmin, Any]]:
    """The pages of the default site, each with its admin and URL pattern."""
    found = {}
    for pages in admin.site._registry.values():
        if isinstance(pages, PageAdmin):
            for pattern in pages.get_urls():
                found[str(pattern.name)] = (pages, pattern)
    return found


@cache
def site_paths() -> dict[str, str]:
    """A URL of each page, for the queue Sales, message 1 and an unknown id."""
    return {
        name: reverse(f"admin:{name}", args=[_ARGUMENTS[type(each).__name__] for each in pattern.pattern.converters.values()])
        for name, (_pages, pattern) in site_pages().items()
    }
