"""What every page of the dashboard shares: its context, and the pages that say what is wrong."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import django
from django.apps import apps
from django.contrib.admin import AdminSite
from django.contrib.auth.models import AnonymousUser
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext as _

from sqlqueue_app.dashboard.live import is_live
from sqlqueue_app.dashboard.navigation import tabs
from sqlqueue_app.databases.dialect import DIALECTS, dialect
from sqlqueue_app.messages.errors import ConnectionLost
from sqlqueue_app.models import Queue
from sqlqueue_app.operations.queue_problems import QueueProblem

logger = logging.getLogger("sqlqueue.dashboard")

# Since this version the admin's breadcrumbs are a list.
_BREADCRUMBS_AS_LIST = django.VERSION >= (6, 1)
# Their base templates leave out the blocks for breadcrumbs and for what stands above the title.
_THEMES_WITHOUT_PLACES = ("unfold",)


@dataclass(frozen=True, slots=True)
class Crumb:
    """One step of the breadcrumbs; the last one has no address."""

    text: str
    url: str | None = None


def page(
    site: AdminSite,
    request: HttpRequest,
    template: str,
    *,
    title: str,
    crumbs: tuple[Crumb, ...] = (),
    status: int = 200,
    **context: Any,
) -> TemplateResponse:
    """A page inside of the admin site; `crumbs` follow the one of the app."""
    # The templates of the admin reverse their links by it, for projects with several admin sites.
    request.current_app = site.name
    complete = {
        **site.each_context(request),
        "opts": Queue._meta,
        "title": title,
        "tabs": tabs(site, request),
        "base_template": "admin/sqlqueue_app/fragment.html" if is_live(request) else "admin/base_site.html",
        "crumbs": (*_first_crumbs(site), *crumbs),
        "crumbs_as_list": _BREADCRUMBS_AS_LIST,
        "theme_has_no_places": any(map(apps.is_installed, _THEMES_WITHOUT_PLACES)),
        **context,
    }
    return TemplateResponse(request, f"admin/sqlqueue_app/{template}.html", complete, status=status)


def problem_page(
    site: AdminSite,
    request: HttpRequest,
    *,
    title: str,
    text: str,
    status: int,
    crumbs: tuple[Crumb, ...] = (),
    problem: QueueProblem | None = None,
) -> TemplateResponse:
    """A page that says what is wrong and, with `problem`, what mends it."""
    return page(site, request, "problem", title=title, text=text, status=status, crumbs=crumbs, problem=problem)


def is_database_away(error: BaseException) -> bool:
    """Whether the error says that a database cannot be reached, told by its code."""
    if isinstance(error, ConnectionLost):
        return True
    if not isinstance(error, OperationalError | InterfaceError):
        return False
    return any(dialect(name).error_kind(error) is ConnectionLost for name in DIALECTS)


def database_away_page(site: AdminSite, request: HttpRequest, error: BaseException) -> HttpResponse:
    """The page for a database that cannot be reached, HTTP 503. It asks no database: not even who is logged in.

    So it may be seen by anybody, and says nothing of the error; the log does.
    """
    logger.warning("a page of the dashboard could not reach its database: %s", error, extra={"event": "dashboard_database_away"})
    # Templates and context processors look at the user, whom nobody can look up now.
    request.user = AnonymousUser()
    context = {
        "title": _("The database cannot be reached"),
        "site_title": site.site_title,
        "site_header": site.site_header,
        "site_url": site.site_url,
        "has_permission": False,
        "is_popup": False,
        "is_nav_sidebar_enabled": False,
        "messages": (),
        "crumbs": (),
    }
    response = TemplateResponse(request, "admin/sqlqueue_app/database_away.html", context, status=503)
    response["Retry-After"] = "10"
    return response.render()


def _first_crumbs(site: AdminSite) -> tuple[Crumb, ...]:
    name = site.name
    return (
        Crumb(_("Home"), reverse("admin:index", current_app=name)),
        Crumb(
            str(Queue._meta.app_config.verbose_name),
            reverse("admin:app_list", args=(Queue._meta.app_label,), current_app=name),
        ),
    )
