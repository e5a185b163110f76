"""The base of the pages: their addresses, who may see them, and what happens when a database is away or the settings are wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import update_wrapper
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db import connections, transaction
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import URLPattern, path, reverse
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from sqlqueue_app.dashboard.access import Power, may
from sqlqueue_app.dashboard.live import is_live, tagged
from sqlqueue_app.dashboard.live_answers import live_answers
from sqlqueue_app.dashboard.pages import Crumb, database_away_page, is_database_away, page, problem_page
from sqlqueue_app.dashboard.paths import path_of
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.models import Conversation
from sqlqueue_app.operations.queue_problems import QueueProblem

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Model]
else:
    _ModelAdmin = admin.ModelAdmin

View = Callable[..., HttpResponseBase]


class PageAdmin(_ModelAdmin):
    """Pages of our own in the place of Django's for a model: for staff with the permission to view queues.

    Nobody adds, changes or deletes anything by the admin's own means. Subclasses say their pages in `pages()`.
    """

    def pages(self) -> list[URLPattern]:
        """The pages, made with `looks` and `acts`; the first is the one that the menu leads to."""
        raise NotImplementedError

    def get_urls(self) -> list[URLPattern]:
        """Our pages alone: those of a model would show columns that mean nothing, or look for a table that does not exist."""
        return self.pages()

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """The permission that all pages need."""
        return may(request, Power.VIEW)

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Whether the menu shows the pages."""
        return self.has_view_permission(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nobody."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Nobody."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Nobody."""
        return False

    # --- addresses ------------------------------------------------------------------------------------------------------------

    def looks(self, route: str, view: View, name: str = "changelist") -> URLPattern:
        """A page that only looks: GET and HEAD."""
        return self._path(route, self._protected(view, ["GET", "HEAD"]), name)

    def acts(self, route: str, view: View, name: str) -> URLPattern:
        """A page that asks for a confirmation and then acts: GET shows it, POST confirms. Its view asks for the permission."""
        return self._path(route, self._protected(view, ["GET", "HEAD", "POST"]), name)

    def url(self, name: str = "changelist", *args: object) -> str:
        """The address of a page of this model."""
        return reverse(f"admin:{self._name(name)}", args=args, current_app=self.admin_site.name)

    def url_of(self, model: type[Model], name: str = "changelist", *args: object) -> str:
        """The address of a page of another model; empty where the project has taken that model off the site."""
        if not self.admin_site.is_registered(model):
            return ""
        return reverse(f"admin:sqlqueue_app_{model._meta.model_name}_{name}", args=args, current_app=self.admin_site.name)

    def conversation_url(self, conversation: str | None) -> str:
        """The page of a conversation; empty without an id, or where the project has taken those pages off the site."""
        return self.url_of(Conversation, "conversation", path_of(conversation)) if conversation else ""

    def conversation_link(self, headers: Mapping[str, str | None] | None) -> dict[str, str]:
        """The conversation of a message with these headers, for the page of it: its id and its address, both empty without one."""
        conversation = (headers or {}).get(names.CONVERSATION_ID) or ""
        return {"conversation": conversation, "conversation_url": self.conversation_url(conversation)}

    def _path(self, route: str, view: Any, name: str) -> URLPattern:
        pattern: URLPattern = path(route, view, name=self._name(name))
        return pattern

    def _name(self, name: str) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_{name}"

    # --- what every page has --------------------------------------------------------------------------------------------------

    def page(
        self, request: HttpRequest, template: str, *, title: str, crumbs: tuple[Crumb, ...] = (), **context: Any
    ) -> HttpResponse:
        """A page; `crumbs` follow the one of the model's first page."""
        shared = self.shared(request)
        return page(self.admin_site, request, template, title=title, crumbs=self.crumbs(*crumbs), **{**shared, **context})

    def shared(self, request: HttpRequest) -> dict[str, Any]:
        """What the templates of all pages may ask for. `export_query` is the query string without the format of a file."""
        query = request.GET.copy()
        query.pop("format", None)
        return {"opts": self.opts, "may_export": may(request, Power.EXPORT), "export_query": query.urlencode()}

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
        """A page that says what is wrong and, with `problem`, what mends it."""
        complete = self.crumbs(*crumbs)
        return problem_page(self.admin_site, request, title=title, text=text, status=status, crumbs=complete, problem=problem)

    def crumbs(self, *more: Crumb) -> tuple[Crumb, ...]:
        """The first page of the model, then these."""
        name = capfirst(str(self.opts.verbose_name_plural))
        return (Crumb(name, self.url()), *more) if more else (Crumb(name),)

    def _protected(self, view: View, methods: list[str]) -> Any:
        """The view for logged-in staff with the permission; a database that is away becomes a page of its own."""

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
                if is_database_away(error):
                    return database_away_page(self.admin_site, request, error)
                raise

        whole: Any = update_wrapper(reachable, checked)
        # With ATOMIC_REQUESTS, a page on SQLite would take the write lock that workers need.
        for alias in connections:
            whole = transaction.non_atomic_requests(alias)(whole)
        return whole
