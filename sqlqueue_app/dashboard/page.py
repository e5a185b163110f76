"""The base of every page: URLs, permission, context and navigation, error pages, keyset pagination, and days in query strings.

Any table name can be a queue name in a URL, slashes and dots included.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Final

import django
from django.apps import apps
from django.contrib import admin
from django.contrib.admin import AdminSite
from django.contrib.admin.utils import unquote
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import InterfaceError, OperationalError, connections, transaction
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.dateparse import parse_date
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from sqlqueue_app.dashboard.access import Permission, may
from sqlqueue_app.dashboard.live import is_live, live_answers, tagged
from sqlqueue_app.dialects.dialect import DIALECTS, dialect
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.errors import ConfigurationError, ConnectionLost
from sqlqueue_app.models import (
    Analytics,
    CheckResult,
    Conversation,
    Dashboard,
    DelayedMessage,
    Endpoint,
    Event,
    FailedMessage,
    LakeSearch,
    NotificationRule,
    Operation,
    OperatorAction,
    PipelineRun,
    Queue,
    Redirect,
    Schedule,
    Search,
    Subscription,
)
from sqlqueue_app.status.queues import KnownQueue, QueueProblem
from sqlqueue_app.status.texts import path_of, text_of_path

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Model]
else:
    _ModelAdmin = admin.ModelAdmin

View = Callable[..., HttpResponseBase]


class ReadOnlyAdmin(_ModelAdmin):
    """A ModelAdmin that adds, changes and deletes nothing."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Always False."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Always False."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Always False."""
        return False


class PageAdmin(ReadOnlyAdmin):
    """A ModelAdmin with pages of our own, for staff with the permission to view queues.

    Subclasses return their pages from `pages()`.
    """

    def pages(self) -> list[URLPattern]:
        """The pages, made with `readonly_view` and `action_view`; the first is the target of the menu."""
        raise NotImplementedError

    def get_urls(self) -> list[URLPattern]:
        """Only our pages: those of ModelAdmin would need a table."""
        return self.pages()

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """The permission that all pages need."""
        return may(request, Permission.VIEW)

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Whether the menu shows the pages."""
        return self.has_view_permission(request)

    def readonly_view(self, route: str, view: View, name: str = "changelist") -> URLPattern:
        """A read-only page: GET and HEAD."""
        return self._path(route, self._protected(view, ["GET", "HEAD"]), name)

    def action_view(self, route: str, view: View, name: str) -> URLPattern:
        """A page that asks for confirmation and then acts: GET shows it, POST confirms. Its view checks the permission."""
        return self._path(route, self._protected(view, ["GET", "HEAD", "POST"]), name)

    def url(self, name: str = "changelist", *args: object) -> str:
        """The URL of a page of this model."""
        return reverse(f"admin:{self._name(name)}", args=args, current_app=self.admin_site.name)

    def url_of(self, model: type[Model], name: str = "changelist", *args: object) -> str:
        """The URL of a page of another model; empty if the model is not on this site."""
        if not self.admin_site.is_registered(model):
            return ""
        return reverse(f"admin:sqlqueue_app_{model._meta.model_name}_{name}", args=args, current_app=self.admin_site.name)

    def conversation_url(self, conversation: str | None) -> str:
        """The URL of a conversation; empty without an id, or if those pages are not on this site."""
        return self.url_of(Conversation, "conversation", path_of(conversation)) if conversation else ""

    def conversation_link(self, headers: Mapping[str, str | None] | None) -> dict[str, str]:
        """The id and the URL of the conversation in these headers; both empty without one."""
        conversation = (headers or {}).get(names.CONVERSATION_ID) or ""
        return {"conversation": conversation, "conversation_url": self.conversation_url(conversation)}

    def _path(self, route: str, view: Any, name: str) -> URLPattern:
        pattern: URLPattern = path(route, view, name=self._name(name))
        return pattern

    def _name(self, name: str) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_{name}"

    def page(
        self, request: HttpRequest, template: str, *, title: str = "", crumbs: tuple[Crumb, ...] = (), **context: Any
    ) -> HttpResponse:
        """A page, by default with the title of the model's first page, whose crumb `crumbs` follow."""
        query = request.GET.copy()
        query.pop("format", None)
        shared = {"opts": self.opts, "may_export": may(request, Permission.EXPORT), "export_query": query.urlencode()}
        crumbs = self.crumbs(*crumbs)
        return page(self.admin_site, request, template, title=title or crumbs[0].text, crumbs=crumbs, **{**shared, **context})

    def problem(
        self,
        request: HttpRequest,
        *,
        title: str,
        text: str,
        status: int,
        crumbs: tuple[Crumb, ...] = (),
        problem: QueueProblem | None = None,
    ) -> HttpResponse:
        """An error page, with the remedy in `problem`."""
        crumbs = self.crumbs(*crumbs)
        return page(self.admin_site, request, "problem", title=title, text=text, status=status, crumbs=crumbs, problem=problem)

    def missing(self, request: HttpRequest, title: str, text: str) -> HttpResponse:
        """An error page for an object that is not there, HTTP 404."""
        return self.problem(request, title=title, text=text, status=404, crumbs=(Crumb(title),))

    def crumbs(self, *more: Crumb) -> tuple[Crumb, ...]:
        """The crumb of the model's first page, then these."""
        name = capfirst(str(self.opts.verbose_name_plural))
        return (Crumb(name, self.url()), *more) if more else (Crumb(name),)

    def _protected(self, view: View, methods: list[str]) -> Any:
        """The view for staff with the permission; an unavailable database becomes an error page."""

        def permitted(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            if not self.has_view_permission(request):
                raise PermissionDenied
            try:
                if is_live(request):
                    return live_answers.answer(request, lambda: view(request, *args, **kwargs))
                return view(request, *args, **kwargs)
            except ConfigurationError as error:
                return self.problem(request, title=_("The settings are wrong"), text=str(error), status=500)

        checked = self.admin_site.admin_view(require_http_methods(methods)(permitted))

        def reachable(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            if is_live(request) and (nothing := live_answers.nothing_new(request)) is not None:
                return nothing
            try:
                response = checked(request, *args, **kwargs)
                # The admin's menu asks for permissions while it is rendered.
                render = getattr(response, "render", None)
                return tagged(request, render() if render is not None else response)
            except Exception as error:
                if is_database_unavailable(error):
                    return database_unavailable_page(self.admin_site, request, error)
                raise

        whole: Any = update_wrapper(reachable, checked)
        # With ATOMIC_REQUESTS, a page on SQLite would take the write lock that workers need.
        for alias in connections:
            whole = transaction.non_atomic_requests(alias)(whole)
        return whole


# --- Context and error pages ------------------------------------------------------------------------------------------

logger = logging.getLogger("sqlqueue.dashboard")

# Since this version breadcrumbs of the admin are a list.
_BREADCRUMBS_AS_LIST = django.VERSION >= (6, 1)
# Their base templates lack the blocks for breadcrumbs and above the title.
_THEMES_WITHOUT_PLACES = ("unfold",)


@dataclass(frozen=True, slots=True)
class Crumb:
    """A breadcrumb; the last one has no URL."""

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
    """A page of the admin site; `crumbs` follow the crumb of the app."""
    # The templates of the admin reverse their links by it, for projects with several admin sites.
    request.current_app = site.name
    complete = {
        **site.each_context(request),
        "opts": Queue._meta,
        "title": title,
        "tabs": tabs(site, request),
        "search_url": reverse("admin:sqlqueue_app_search_changelist", current_app=site.name) if site.is_registered(Search) else "",
        "base_template": "admin/sqlqueue_app/fragment.html" if is_live(request) else "admin/base_site.html",
        "crumbs": (*_first_crumbs(site), *crumbs),
        "crumbs_as_list": _BREADCRUMBS_AS_LIST,
        "theme_has_no_places": any(map(apps.is_installed, _THEMES_WITHOUT_PLACES)),
        **context,
    }
    return TemplateResponse(request, f"admin/sqlqueue_app/{template}.html", complete, status=status)


def is_database_unavailable(error: BaseException) -> bool:
    """Whether the error code means that a database cannot be reached."""
    if isinstance(error, ConnectionLost):
        return True
    if not isinstance(error, OperationalError | InterfaceError):
        return False
    kinds = (dialect(name).error_kind(error) for name in DIALECTS)
    return any(kind is not None and issubclass(kind, ConnectionLost) for kind in kinds)


def database_unavailable_page(site: AdminSite, request: HttpRequest, error: BaseException) -> HttpResponse:
    """The page for an unavailable database, HTTP 503. It uses no database, not even for the user.

    Therefore anybody can see it, and it shows nothing of the error; the log does.
    """
    logger.warning("a page of the dashboard could not reach its database: %s", error, extra={"event": "dashboard_database_away"})
    # Templates and context processors use the user, who cannot be read now.
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
        Crumb(str(Queue._meta.app_config.verbose_name), reverse("admin:app_list", args=(Queue._meta.app_label,), current_app=name)),
    )


# --- Navigation -------------------------------------------------------------------------------------------------------

PARTS: Final[tuple[type[Model], ...]] = (
    Dashboard,
    Queue,
    Endpoint,
    FailedMessage,
    Search,
    Conversation,
    LakeSearch,
    Analytics,
    DelayedMessage,
    Subscription,
    Schedule,
    Redirect,
    CheckResult,
    Event,
    NotificationRule,
    Operation,
    PipelineRun,
    OperatorAction,
)


@dataclass(frozen=True, slots=True)
class Tab:
    """A link of the navigation."""

    label: str
    url: str
    is_here: bool


def tabs(site: AdminSite, request: HttpRequest) -> tuple[Tab, ...]:
    """The parts of the dashboard on this site, in order."""
    found = []
    for model in PARTS:
        if site.is_registered(model):
            url = reverse(f"admin:sqlqueue_app_{model._meta.model_name}_changelist", current_app=site.name)
            found.append(Tab(capfirst(str(model._meta.verbose_name_plural)), url, request.path.startswith(url)))
    return tuple(found)


# --- Names in URLs ----------------------------------------------------------------------------------------------------

__all__ = ["name_of_path", "path_of", "queue_of_path", "text_of_path"]


def queue_of_path(path: str, queues: Iterable[KnownQueue]) -> KnownQueue | None:
    """The known queue that a URL part names: encoded by `path_of`, or typed as the bare name."""
    by_name = {queue.name: queue for queue in queues}
    found = name_of_path(path, by_name)
    return None if found is None else by_name[found]


def name_of_path(path: str, names: Iterable[str]) -> str | None:
    """The one of these names that a URL part means, as in `queue_of_path`."""
    known = set(names)
    by_path = {path_of(name): name for name in known}
    return by_path.get(path) or next((name for name in (path, unquote(path)) if name in known), None)


# --- Keyset pagination ------------------------------------------------------------------------------------------------

_LARGEST_KEY: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class KeysetPage:
    """The rows of one page, and the query strings of the first and next page, None if there is none."""

    rows: list[Any]
    first_query: str | None
    next_query: str | None

    @property
    def is_first(self) -> bool:
        """Whether this is the first page."""
        return self.first_query is None

    def links(self) -> dict[str, Any]:
        """Template variables for the links to other pages."""
        return {"first_query": self.first_query, "next_query": self.next_query}


def keyset_page(request: HttpRequest, found: QuerySet[Any], instant: str, *, size: int) -> KeysetPage:
    """At most `size` rows behind the row whose key is in `before`; the first page without a valid key.

    `found` must be ordered by `instant` and key, both descending. Two statements, one for the first page.
    """
    last = _row(found, request.GET.get("before", ""))
    if last is not None:
        at = getattr(last, instant)
        found = found.filter(Q(**{f"{instant}__lt": at}) | Q(**{instant: at}, pk__lt=last.pk))
    rows = list(found[: size + 1])
    query = request.GET.copy()
    query.pop("before", None)
    following = query.copy()
    if len(rows) > size:
        following["before"] = str(rows[size - 1].pk)
    return KeysetPage(rows[:size], None if last is None else query.urlencode(), following.urlencode() if len(rows) > size else None)


def _row(found: QuerySet[Any], text: str) -> Model | None:
    """The row with this key, whatever the filter."""
    if not text:
        return None
    try:
        key = found.model._meta.pk.to_python(text)
    except ValidationError:
        return None
    if isinstance(key, int) and not 0 <= key <= _LARGEST_KEY:
        return None
    row: Model | None = found.model._default_manager.using(found.db).filter(pk=key).first()
    return row


# --- Days in query strings --------------------------------------------------------------------------------------------


def day_of(text: str) -> date | None:
    """Parse a day; None if invalid."""
    try:
        return parse_date(text)
    except ValueError:
        return None


def within(column: str, since: date | None, until: date | None) -> Q:
    """The condition that an instant is on one of these days, both inclusive; None is unbounded."""
    found = Q()
    if since is not None:
        found &= Q(**{f"{column}__gte": _begin(since)})
    if until is not None and until < date.max:
        found &= Q(**{f"{column}__lt": _begin(until + timedelta(days=1))})
    return found


def _begin(day: date) -> datetime:
    begin = datetime.combine(day, time())
    try:
        return timezone.make_aware(begin)
    except OverflowError:  # at the ends of time
        return begin.replace(tzinfo=timezone.get_default_timezone())
