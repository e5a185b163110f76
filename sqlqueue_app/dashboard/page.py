"""The base of every page: URLs, permission, context and navigation, error pages.

Any table name can be a queue name in a URL, slashes and dots included.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeVar

import django
from django.apps import apps
from django.contrib import admin
from django.contrib.admin import AdminSite
from django.contrib.admin.utils import unquote
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied
from django.db import connections, transaction
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.http import urlencode
from django.utils.text import capfirst
from django.utils.translation import gettext as _, gettext_lazy, ngettext
from django.views.decorators.http import require_http_methods

from sqlqueue_app import models
from sqlqueue_app.dashboard.access import Permission, may
from sqlqueue_app.dashboard.formats import Number, bounded_number, number
from sqlqueue_app.dashboard.live import is_live, live_answers, tagged
from sqlqueue_app.messages.errors import ConfigurationError, QueueNotFound
from sqlqueue_app.models import Conversation, Queue, managed_alias
from sqlqueue_app.monitoring.check_results import count_alerts_and_failures
from sqlqueue_app.status.queues import KnownQueue, QueueProblem
from sqlqueue_app.status.texts import path_of, text_of_path
from sqlqueue_app.tables.connections import is_database_unavailable, optional_read
from sqlqueue_app.tables.queue import LAST_ROW_VERSION

if TYPE_CHECKING:
    from sqlqueue_app.dashboard.actions import Action

logger = logging.getLogger("sqlqueue.dashboard")

__all__ = ["name_of_path", "path_of", "queue_of_path", "text_of_path"]  # names in URLs

View = Callable[..., HttpResponseBase]
_Found = TypeVar("_Found", bound=Model)


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """A ModelAdmin without adding, changing and deleting."""

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Always False."""
        return False

    has_add_permission = has_delete_permission = has_change_permission

    def get_urls(self) -> list[URLPattern]:
        """Django's pages; an unavailable database becomes an error page."""
        urls: list[URLPattern] = super().get_urls()
        for each in urls:
            each.callback = guarded(self.admin_site, each.callback)
        return urls

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Whether the menu shows the pages."""
        return bool(self.has_view_permission(request))


class PageAdmin(ReadOnlyAdmin):
    """A ModelAdmin with pages of our own, for staff with the permission to view queues."""

    # Their pages come before the others in the resolver.
    action_classes: ClassVar[Sequence[type[Action]]] = ()
    # The other read-only pages, by name: `message_view` shows the page `message`.
    routes: ClassVar[Mapping[str, str]] = {}

    def pages(self) -> list[URLPattern]:
        """The read-only pages; the first is the target of the menu."""
        others = [self.readonly_view(route, getattr(self, f"{name}_view"), name) for name, route in self.routes.items()]
        return [self.readonly_view("", self.changelist_view), *others]

    def get_urls(self) -> list[URLPattern]:
        """Only our pages: those of ModelAdmin would need a table."""
        return [*(action.url_pattern(self) for action in self.action_classes), *self.pages()]

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """The permission that all pages need."""
        return may(request, Permission.VIEW)

    def readonly_view(self, route: str, view: View, name: str = "changelist") -> URLPattern:
        """A read-only page: GET and HEAD."""
        return self._path(route, view, name, ["GET", "HEAD"])

    def action_view(self, route: str, view: View, name: str) -> URLPattern:
        """A page with a confirmation: GET shows it, POST confirms. Its view checks the permission."""
        return self._path(route, view, name, ["GET", "HEAD", "POST"])

    def _path(self, route: str, view: View, name: str, methods: list[str]) -> URLPattern:
        """The view is for logged-in staff with the permission."""
        page = self.admin_site.admin_view(require_http_methods(methods)(partial(self._permitted, view)))
        name = f"{self.opts.app_label}_{self.opts.model_name}_{name}"
        return path(route, guarded(self.admin_site, page), name=name)  # type: ignore[no-any-return]

    def url(self, name: str = "changelist", *args: object) -> str:
        """The URL of a page of this model."""
        return self.url_of(self.opts.model, name, *args)

    def url_of(self, model: type[Model], name: str = "changelist", *args: object) -> str:
        """The URL of a page of another model; empty if the model is not on this site."""
        return url_of_page(self.admin_site, model, name, *args)

    def conversation_url(self, conversation: str | None) -> str:
        """The URL of a conversation; empty without an id, or if those pages are not on this site."""
        return self.url_of(Conversation, "conversation", path_of(conversation)) if conversation else ""

    def page(
        self,
        request: HttpRequest,
        template: str,
        *,
        title: str = "",
        crumbs: tuple[Crumb, ...] = (),
        status: int = 200,
        **context: Any,
    ) -> TemplateResponse:
        """A page below the model's first page. The title is the text of the last crumb, unless given."""
        site, crumbs = self.admin_site, self.crumbs(*crumbs)
        # The admin's templates reverse their links with it, for projects with several admin sites.
        request.current_app = site.name
        complete = {
            **site.each_context(request),
            "opts": self.opts,
            "title": title or crumbs[-1].text,
            "navigation": navigation(site, request, context.get("alert_count"), context.get("failure_count")),
            "may_export": may(request, Permission.EXPORT),
            "export_query": query_of(request),
            "base_template": "admin/sqlqueue_app/fragment.html" if is_live(request) else "admin/base_site.html",
            "crumbs": crumbs,
            # Since this version breadcrumbs of the admin are a list.
            "crumbs_as_list": django.VERSION >= (6, 1),
            # Its base templates lack the blocks for breadcrumbs and above the title.
            "theme_has_no_places": apps.is_installed("unfold"),
            **context,
        }
        return TemplateResponse(request, f"admin/sqlqueue_app/{template}.html", complete, status=status)

    def problem(
        self, request: HttpRequest, *, problem: QueueProblem | None = None, links: Sequence[tuple[str, str]] = (), **shown: Any
    ) -> HttpResponse:
        """An error page like `page`, with a `text`, the remedy in `problem`, and helpful pages in `links` (URL and text)."""
        return self.page(request, "problem", problem=problem, links=links, **shown)

    def message_gone(self, request: HttpRequest, text: str, crumbs: tuple[Crumb, ...], status: int = 404) -> HttpResponse:
        """The error page of a message that is no longer there, with a search for the `id` in the query string."""
        message_id, search = request.GET.get("id", ""), self.url_of(models.Search)
        links = [(f"{search}?{urlencode({'q': message_id})}", _("Search for the message"))] if message_id and search else []
        return self.problem(request, title=_("Message not found"), text=text, status=status, crumbs=crumbs, links=links)

    def crumbs(self, *more: Crumb) -> tuple[Crumb, ...]:
        """The crumbs of the site, the app and the model's first page, then these."""
        site, app = self.admin_site.name, Queue._meta.app_config
        name = label_of_page(self.opts.model) or capfirst(str(self.opts.verbose_name_plural))
        return (
            Crumb(_("Home"), reverse("admin:index", current_app=site)),
            Crumb(str(app.verbose_name), reverse("admin:app_list", args=(app.label,), current_app=site)),
            Crumb(name, self.url() if more else None),
            *more,
        )

    def _permitted(self, view: View, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """The page for users with the permission; missing objects and tables, and wrong settings, become error pages."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            return shared(request, lambda: view(request, *args, **kwargs))
        except (Http404, QueueNotFound) as error:
            return self.problem(request, text=str(error), status=404, crumbs=(Crumb(_("Not found")),))
        except ConfigurationError as error:
            return self.problem(request, title=_("The settings are wrong"), text=str(error), status=500)


def shared(request: HttpRequest, make: Callable[[], HttpResponseBase]) -> HttpResponseBase:
    """The page; for our script, the answer that all users share. The caller must have checked the permission."""
    return live_answers.answer(request, make) if is_live(request) else make()


def guarded(site: AdminSite, view: View) -> Any:
    """The view with its page rendered; an unavailable database becomes an error page."""

    @wraps(view)
    def reachable(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if is_live(request) and (nothing := live_answers.nothing_new(request)) is not None:
            return nothing
        try:
            response = view(request, *args, **kwargs)
            # The admin's menu reads permissions while it is rendered.
            render = getattr(response, "render", None)
            return tagged(request, render() if render is not None else response)
        except Exception as error:
            if is_database_unavailable(error):
                return database_unavailable_page(site, request, error)
            raise

    whole: Any = reachable
    # With ATOMIC_REQUESTS, a page on SQLite would take the write lock that workers need.
    for alias in connections:
        whole = transaction.non_atomic_requests(alias)(whole)
    return whole


def query_of(request: HttpRequest, **changed: object) -> str:
    """The query string of a page, without the format of a file, and with these parameters changed; None removes one."""
    query = request.GET.copy()
    for name, value in {"format": None, **changed}.items():
        query.setlist(name, [] if value is None else [str(value)])
    return query.urlencode()


def number_of(text: str, maximum: int = LAST_ROW_VERSION) -> int:
    """A number from 1 to `maximum` in a URL or a form, of ASCII digits only; 0 for any other text."""
    found = int(text) if re.fullmatch("[0-9]{1,19}", text) else 0
    return found if found <= maximum else 0


class Crumb(NamedTuple):
    """A breadcrumb; the last one has no URL."""

    text: str
    url: str | None = None


def database_unavailable_page(site: AdminSite, request: HttpRequest, error: BaseException) -> HttpResponse:
    """The page for an unavailable database, HTTP 503. It uses no database, not even for the user.

    So anyone can see it, and it shows no details of the error, which are in the log.
    """
    logger.warning("a page of the dashboard could not reach its database: %s", error, extra={"event": "dashboard_database_away"})
    # Templates and context processors use the user, who cannot be read in this state.
    request.user = AnonymousUser()
    context = {
        "title": _("The database cannot be reached"),
        **{name: getattr(site, name) for name in ("site_title", "site_header", "site_url")},
        **dict.fromkeys(("has_permission", "is_popup", "is_nav_sidebar_enabled"), False),
        **dict.fromkeys(("messages", "crumbs"), ()),
    }
    response = TemplateResponse(request, "admin/sqlqueue_app/database_away.html", context, status=503)
    response["Retry-After"] = "10"
    return response.render()


# The pages by group, in the order of use: label, model, and the name of the page.
NAVIGATION: Final[Sequence[tuple[object, Sequence[tuple[object, type[Model], str]]]]] = [
    (gettext_lazy("Now"), [
        (gettext_lazy("Overview"), models.Dashboard, "changelist"),
        (gettext_lazy("Queues"), models.Queue, "changelist"),
        (gettext_lazy("Endpoints"), models.Endpoint, "changelist"),
        (gettext_lazy("Instances"), models.Instance, "changelist"),
    ]),
    (gettext_lazy("Failures"), [
        (gettext_lazy("Groups"), models.FailedMessage, "changelist"),
        (gettext_lazy("Failed messages"), models.FailedMessage, "messages"),
        (gettext_lazy("Pending retries"), models.FailedMessage, "pending"),
        (gettext_lazy("Archived"), models.FailedMessage, "archived"),
        (gettext_lazy("Redirects"), models.Redirect, "changelist"),
    ]),
    (gettext_lazy("Messages"), [
        (gettext_lazy("Search"), models.Search, "changelist"),
        (gettext_lazy("Conversations"), models.Conversation, "changelist"),
        (gettext_lazy("Message archive"), models.LakeSearch, "changelist"),
        (gettext_lazy("Delayed"), models.DelayedMessage, "changelist"),
        (gettext_lazy("Schedules"), models.Schedule, "changelist"),
        (gettext_lazy("Subscriptions"), models.Subscription, "changelist"),
        (gettext_lazy("Tasks"), models.TaskResult, "changelist"),
    ]),
    (gettext_lazy("Insight"), [
        (gettext_lazy("Throughput and latency"), models.Analytics, "changelist"),
        (gettext_lazy("Map"), models.Analytics, "map"),
        (gettext_lazy("Usage"), models.Analytics, "usage"),
        (gettext_lazy("Pipeline runs"), models.PipelineRun, "changelist"),
    ]),
    (gettext_lazy("Settings & log"), [
        (gettext_lazy("Notifications"), models.NotificationRule, "changelist"),
        (gettext_lazy("Checks"), models.CheckResult, "changelist"),
        (gettext_lazy("In-doubt transactions"), models.DistributedTransaction, "changelist"),
        (gettext_lazy("Operations"), models.Operation, "changelist"),
        (gettext_lazy("Events"), models.Event, "changelist"),
        (gettext_lazy("Audit log"), models.OperatorAction, "changelist"),
    ]),
]  # fmt: skip


def label_of_page(model: type[Model], page: str = "changelist") -> str:
    """The name of a page in the navigation, which is its title; empty for other pages."""
    found = (str(label) for _group, pages in NAVIGATION for label, *named in pages if named == [model, page])
    return next(found, "")


def url_of_page(site: AdminSite, model: type[Model], page: str = "changelist", *args: object) -> str:
    """The URL of a page of a model; empty if the model is not on the site."""
    if not site.is_registered(model):
        return ""
    return reverse(f"admin:sqlqueue_app_{model._meta.model_name}_{page}", args=args, current_app=site.name)


@dataclass(slots=True)
class Tab:
    """A link of the navigation."""

    label: str
    url: str
    is_here: bool = False
    model: type[Model] | None = None


@dataclass(slots=True)
class TabGroup:
    """A group of the navigation, with its badge number and what that counts."""

    label: str
    tabs: list[Tab]
    badge: str = ""
    counted: str = ""

    @property
    def is_here(self) -> bool:
        """Whether the page belongs to the group."""
        return any(tab.is_here for tab in self.tabs)


def navigation(
    site: AdminSite, request: HttpRequest, alerts: int | None = None, unresolved: Number | None = None
) -> list[TabGroup]:
    """The groups of pages on this site that the user may see, without empty ones, with the page's own numbers, if any."""
    live = is_live(request)  # needs only the badges
    groups = [TabGroup(str(label), []) for label, _pages in NAVIGATION] if live else _groups(site, request)
    for group, badge in zip(groups, _badges(request, alerts, unresolved), strict=False):
        group.badge, group.counted = badge
    return [group for group in groups if group.tabs or live]


def _groups(site: AdminSite, request: HttpRequest) -> list[TabGroup]:
    def tabs(pages: Iterable[tuple[object, type[Model], str]]) -> list[Tab]:
        return [
            Tab(str(label), url_of_page(site, model, page), model=model)
            for label, model, page in pages
            if site.is_registered(model) and site.get_model_admin(model).has_view_permission(request)
        ]

    groups = [TabGroup(str(label), tabs(pages)) for label, pages in NAVIGATION]
    found = [tab for group in groups for tab in group.tabs if request.get_full_path().startswith(tab.url)]
    for tab in found:
        # The URL of a list is the prefix of its other pages.
        tab.is_here = len(tab.url) == max(len(each.url) for each in found)
    return groups


def _badges(request: HttpRequest, alerts: int | None, unresolved: Number | None) -> list[tuple[str, str]]:
    """Badges of the first groups: alerts, by default the known ones, marked if more may exist, and unresolved failures."""
    if not may(request, Permission.VIEW):
        return []
    try:
        alias = managed_alias()
    except ConfigurationError:
        return []  # the page itself shows the mistake in the settings
    with optional_read(alias, "count what the navigation shows"):
        mark = ""
        if alerts is None or unresolved is None:
            found = count_alerts_and_failures(alias)
            mark = "" if alerts is not None or found.is_current else "!"
            alerts = found.alerts if alerts is None else alerts
            unresolved = unresolved or bounded_number(found.failures, exact=found.exact)
        alerting = ngettext("%(count)s alert", "%(count)s alerts", alerts)
        if mark:
            alerting = _("No worker has run checks for two minutes; known alerts: %(count)s")
        failing = ngettext("%(count)s unresolved failure", "%(count)s unresolved failures", unresolved.value)
        return [
            ((number(alerts) if alerts else "") + mark, alerting % {"count": number(alerts)}),
            (unresolved.text if unresolved.value else "", failing % {"count": unresolved.text}),
        ]
    return []


def order_menu(site: AdminSite) -> None:
    """Order the site's menu like the navigation, in its groups; other models follow as Django lists them."""
    plain = site.get_app_list
    if getattr(plain, "in_groups", False):
        return

    def get_app_list(request: HttpRequest, app_label: str | None = None) -> list[Any]:
        found = plain(request, app_label)
        if app_label is not None:
            return found  # the page of a single app accepts only one entry
        ours = Queue._meta.app_label
        return [part for app in found for part in (_parts(site, request, app) if app["app_label"] == ours else [app])]

    get_app_list.in_groups = True  # type: ignore[attr-defined]
    site.get_app_list = get_app_list  # type: ignore[method-assign]


def _parts(site: AdminSite, request: HttpRequest, app: dict[str, Any]) -> list[dict[str, Any]]:
    """Our app in the menu: a part for each group of the navigation, then the other models."""
    by_model = {entry["model"]: entry for entry in app["models"]}
    groups = _groups(site, request)
    parts = []
    for group in groups:
        entries = [_menu_entry(request, by_model[tab.model], tab) for tab in group.tabs if tab.model in by_model]
        parts.append((f"{app['name']}: {group.label}", entries))
    in_groups = {tab.model for group in groups for tab in group.tabs}
    parts.append((app["name"], [entry for model, entry in by_model.items() if model not in in_groups]))
    return [{**app, "name": name, "models": entries} for name, entries in parts if entries]


def _menu_entry(request: HttpRequest, entry: dict[str, Any], tab: Tab) -> dict[str, Any]:
    # Django's template marks each entry whose URL the path contains; with a query string, an entry is never marked.
    is_above = request.get_full_path().startswith(tab.url) and not tab.is_here
    return {**entry, "name": tab.label, "admin_url": tab.url + "?" * is_above, "add_url": None, "view_only": True}


def queue_of_path(path: str, queues: Iterable[KnownQueue]) -> KnownQueue | None:
    """The known queue that a URL part names: encoded by `path_of`, or typed as the bare name."""
    by_name = {queue.name: queue for queue in queues}
    return by_name.get(name_of_path(path, by_name) or "")


def name_of_path(path: str, names: Iterable[str]) -> str | None:
    """The name that a URL part means, as in `queue_of_path`."""
    known = set(names)
    by_path = {path_of(name): name for name in known}
    return by_path.get(path) or next((name for name in (path, unquote(path)) if name in known), None)


def found_or_404(found: QuerySet[_Found], text: str) -> _Found:
    """The only row; Http404 with this text if there is none."""
    row = found.first()
    if row is None:
        raise Http404(text)
    return row
