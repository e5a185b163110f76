"""The base of every page: URLs, permission, context and navigation, error pages.

Any table name can be a queue name in a URL, slashes and dots included.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

import django
from django.apps import apps
from django.contrib import admin
from django.contrib.admin import AdminSite
from django.contrib.admin.utils import unquote
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied
from django.db import InterfaceError, OperationalError, connections, transaction
from django.db.models import Count, Model, QuerySet, Value
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.dateparse import parse_date
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.http import require_http_methods

from sqlqueue_app.dashboard.access import Permission, may
from sqlqueue_app.dashboard.formats import Number, bounded_number, number
from sqlqueue_app.dashboard.live import is_live, live_answers, tagged
from sqlqueue_app.dialects.dialect import DIALECTS, dialect
from sqlqueue_app.failures.queries import COUNTED_AT_MOST
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.errors import ConfigurationError, ConnectionLost
from sqlqueue_app.models import (
    Analytics,
    CheckResult,
    Conversation,
    Dashboard,
    DelayedMessage,
    DistributedTransaction,
    Endpoint,
    Event,
    FailedMessage,
    FailureStatus,
    Instance,
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
    TaskResult,
)
from sqlqueue_app.receiving.instances import managed_alias
from sqlqueue_app.status.queues import KnownQueue, QueueProblem
from sqlqueue_app.status.texts import path_of, text_of_path
from sqlqueue_app.tables.connections import optional_read

if TYPE_CHECKING:
    from sqlqueue_app.dashboard.actions import Action

    _ModelAdmin = admin.ModelAdmin[Model]
else:
    _ModelAdmin = admin.ModelAdmin

View = Callable[..., HttpResponseBase]
_Found = TypeVar("_Found", bound=Model)


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

    # Their pages come before the others in the resolver.
    action_classes: ClassVar[Sequence[type[Action]]] = ()

    def pages(self) -> list[URLPattern]:
        """The pages, made with `readonly_view` and `action_view`; the first is the target of the menu."""
        return [self.readonly_view("", self.changelist_view)]

    def get_urls(self) -> list[URLPattern]:
        """Only our pages: those of ModelAdmin would need a table."""
        return [*(action.url_pattern(self) for action in self.action_classes), *self.pages()]

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
        """A page below the model's first page. The text of the last crumb is the title, unless another is given."""
        query = request.GET.copy()
        query.pop("format", None)
        shared = {"opts": self.opts, "may_export": may(request, Permission.EXPORT), "export_query": query.urlencode()}
        crumbs = self.crumbs(*crumbs)
        return page(self.admin_site, request, template, title=title or crumbs[-1].text, crumbs=crumbs, **{**shared, **context})

    def problem(
        self,
        request: HttpRequest,
        *,
        title: str,
        text: str,
        status: int,
        crumbs: tuple[Crumb, ...] = (),
        problem: QueueProblem | None = None,
        links: Sequence[tuple[str, str]] = (),
    ) -> HttpResponse:
        """An error page, with the remedy in `problem` and pages that may help in `links` (URL and text)."""
        shown: dict[str, Any] = {"title": title, "text": text, "problem": problem, "links": links}
        return page(self.admin_site, request, "problem", status=status, crumbs=self.crumbs(*crumbs), **shown)

    def crumbs(self, *more: Crumb) -> tuple[Crumb, ...]:
        """The crumb of the model's first page, then these."""
        name = label_of_page(self.opts.model) or capfirst(str(self.opts.verbose_name_plural))
        return (Crumb(name, self.url()), *more) if more else (Crumb(name),)

    def _protected(self, view: View, methods: list[str]) -> Any:
        """The view for staff with the permission; Http404 and an unavailable database become error pages."""

        def permitted(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            if not self.has_view_permission(request):
                raise PermissionDenied
            try:
                if is_live(request):
                    return live_answers.answer(request, lambda: view(request, *args, **kwargs))
                return view(request, *args, **kwargs)
            except (Http404, ConfigurationError) as error:
                is_missing = isinstance(error, Http404)
                title = _("Not found") if is_missing else _("The settings are wrong")
                status, crumbs = (404, (Crumb(title),)) if is_missing else (500, ())
                return self.problem(request, title=title, text=str(error), status=status, crumbs=crumbs)

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
        "navigation": navigation(site, request, context.get("alert_count"), context.get("failure_count")),
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

# The pages by group, in the order of their use: label, model, and the name of the page.
NAVIGATION: Final[tuple[tuple[object, tuple[tuple[object, type[Model], str], ...]], ...]] = (
    (
        gettext_lazy("Now"),
        (
            (gettext_lazy("Overview"), Dashboard, "changelist"),
            (gettext_lazy("Queues"), Queue, "changelist"),
            (gettext_lazy("Endpoints"), Endpoint, "changelist"),
            (gettext_lazy("Instances"), Instance, "changelist"),
        ),
    ),
    (
        gettext_lazy("Failures"),
        (
            (gettext_lazy("Groups"), FailedMessage, "changelist"),
            (gettext_lazy("Failed messages"), FailedMessage, "messages"),
            (gettext_lazy("Pending retries"), FailedMessage, "pending"),
            (gettext_lazy("Archived"), FailedMessage, "archived"),
            (gettext_lazy("Redirects"), Redirect, "changelist"),
        ),
    ),
    (
        gettext_lazy("Messages"),
        (
            (gettext_lazy("Search"), Search, "changelist"),
            (gettext_lazy("Conversations"), Conversation, "changelist"),
            (gettext_lazy("Message archive"), LakeSearch, "changelist"),
            (gettext_lazy("Delayed"), DelayedMessage, "changelist"),
            (gettext_lazy("Schedules"), Schedule, "changelist"),
            (gettext_lazy("Subscriptions"), Subscription, "changelist"),
            (gettext_lazy("Tasks"), TaskResult, "changelist"),
        ),
    ),
    (
        gettext_lazy("Insight"),
        (
            (gettext_lazy("Throughput and latency"), Analytics, "changelist"),
            (gettext_lazy("Map"), Analytics, "map"),
            (gettext_lazy("Usage"), Analytics, "usage"),
            (gettext_lazy("Pipeline runs"), PipelineRun, "changelist"),
        ),
    ),
    (
        gettext_lazy("Settings & log"),
        (
            (gettext_lazy("Notifications"), NotificationRule, "changelist"),
            (gettext_lazy("Checks"), CheckResult, "changelist"),
            (gettext_lazy("In-doubt transactions"), DistributedTransaction, "changelist"),
            (gettext_lazy("Operations"), Operation, "changelist"),
            (gettext_lazy("Events"), Event, "changelist"),
            (gettext_lazy("Audit log"), OperatorAction, "changelist"),
        ),
    ),
)


def label_of_page(model: type[Model], page: str = "changelist") -> str:
    """The name of a page in the navigation, which is its title; empty for other pages."""
    found = (str(label) for _group, pages in NAVIGATION for label, *named in pages if named == [model, page])
    return next(found, "")


@dataclass(frozen=True, slots=True)
class Tab:
    """A link of the navigation."""

    label: str
    url: str
    is_here: bool = False
    model: type[Model] | None = None


@dataclass(frozen=True, slots=True)
class TabGroup:
    """A group of the navigation, with the number of what needs attention in it and what that number counts."""

    label: str
    tabs: tuple[Tab, ...]
    badge: str = ""
    counted: str = ""

    @property
    def is_here(self) -> bool:
        """Whether the page is one of the group."""
        return any(tab.is_here for tab in self.tabs)


def navigation(
    site: AdminSite, request: HttpRequest, alerts: int | None = None, unresolved: Number | None = None
) -> list[TabGroup]:
    """The groups of pages on this site that the user may see, without empty ones, with the numbers that the page shows, if any."""
    groups = _groups(site, request)
    here = _url_of_here(groups, request)
    badges = _badges(request, alerts, unresolved)
    return [
        TabGroup(label, tuple(replace(tab, is_here=tab.url == here) for tab in tabs), *badges.get(place, ()))
        for place, (label, tabs) in enumerate(groups)
        if tabs
    ]


def _url_of_here(groups: list[tuple[str, list[Tab]]], request: HttpRequest) -> str:
    return max((tab.url for _label, tabs in groups for tab in tabs if request.path.startswith(tab.url)), key=len, default="")


def _groups(site: AdminSite, request: HttpRequest) -> list[tuple[str, list[Tab]]]:
    return [
        (
            str(label),
            [
                Tab(str(word), url_of_page(site.name, model, page), model=model)
                for word, model, page in pages
                if site.is_registered(model) and site.get_model_admin(model).has_view_permission(request)
            ],
        )
        for label, pages in NAVIGATION
    ]


def url_of_page(site_name: str, model: type[Model], page: str) -> str:
    """The URL of a page that takes no arguments."""
    return reverse(f"admin:sqlqueue_app_{model._meta.model_name}_{page}", current_app=site_name)


def _badges(request: HttpRequest, alerts: int | None, unresolved: Number | None) -> dict[int, tuple[str, str]]:
    """Badges by the number of their group: alerts, by default those that a worker has written, and unresolved failures."""
    if is_live(request) or not may(request, Permission.VIEW):
        return {}
    found: dict[int, tuple[str, str]] = {}
    try:
        alias = managed_alias()
    except ConfigurationError:
        return {}  # the page itself says what is wrong with the settings
    with optional_read(alias, "count what the navigation shows"):
        if alerts is None or unresolved is None:
            written, (failed, exact) = _counted(alias)
            alerts = written if alerts is None else alerts
            unresolved = unresolved or bounded_number(failed, exact=exact)
        if alerts:
            found[0] = (number(alerts), ngettext("%(count)s alert", "%(count)s alerts", alerts) % {"count": number(alerts)})
        if unresolved.value:
            words = ngettext("%(count)s unresolved failure", "%(count)s unresolved failures", unresolved.value)
            found[1] = (unresolved.text, words % {"count": unresolved.text})
    return found


def _counted(alias: str) -> tuple[int, tuple[int, bool]]:
    """Alerts that a worker has written, and unresolved failures as `count_failures` counts them. One statement."""
    failing = CheckResult.objects.using(alias).filter(failing=True).exclude(muted_until__gt=timezone.now())
    unresolved = FailedMessage.objects.using(alias).filter(status=FailureStatus.UNRESOLVED)
    first = unresolved.order_by()[: COUNTED_AT_MOST + 1].values("pk")
    alerts, failed = (
        found.order_by().values(what=Value(what)).annotate(number=Count("pk")).values_list("what", "number")
        for what, found in (("alerts", failing), ("failed", FailedMessage.objects.using(alias).filter(pk__in=first)))
    )
    counts = dict(alerts.union(failed, all=True))
    return counts["alerts"], (min(counts["failed"], COUNTED_AT_MOST), counts["failed"] <= COUNTED_AT_MOST)


def order_menu(site: AdminSite) -> None:
    """Show the pages in the site's menu in the groups and the order of the navigation; other models follow as Django lists them."""
    plain = site.get_app_list
    if getattr(plain, "in_groups", False):
        return

    def get_app_list(request: HttpRequest, app_label: str | None = None) -> list[Any]:
        apps = plain(request, app_label)
        return [group for app in apps for group in (_menu_groups(site, request, app) if _is_ours(app, app_label) else [app])]

    get_app_list.in_groups = True  # type: ignore[attr-defined]
    site.get_app_list = get_app_list  # type: ignore[method-assign]


def _is_ours(app: Mapping[str, Any], app_label: str | None) -> bool:
    # The page of the app alone takes one entry.
    return app_label is None and app["app_label"] == Queue._meta.app_label


def _menu_groups(site: AdminSite, request: HttpRequest, app: dict[str, Any]) -> list[dict[str, Any]]:
    by_model = {entry["model"]: entry for entry in app["models"]}
    groups, listed, found = [], set(), _groups(site, request)
    here = _url_of_here(found, request)

    def shown_url(tab: Tab) -> str:
        # The admin marks each entry whose URL the path contains: that of groups is the begin of all others of failed messages.
        return f"{tab.url}?" if tab.url != here and request.path.startswith(tab.url) else tab.url

    for label, tabs in found:
        entries = [
            {**by_model[tab.model], "name": tab.label, "admin_url": shown_url(tab), "add_url": None, "view_only": True}
            for tab in tabs
            if tab.model in by_model
        ]
        listed |= {tab.model for tab in tabs}
        if entries:
            groups.append({**app, "name": f"{app['name']}: {label}", "models": entries})
    others = [entry for model, entry in by_model.items() if model not in listed]
    return [*groups, {**app, "models": others}] if others else groups


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


def found_or_404(found: QuerySet[_Found], text: str) -> _Found:
    """The only row; Http404 with this text if there is none."""
    row = found.first()
    if row is None:
        raise Http404(text)
    return row


def day_of(text: str) -> date | None:
    """Parse a day; None if invalid."""
    try:
        return parse_date(text)
    except ValueError:
        return None
