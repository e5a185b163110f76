"""A site whose page of failed messages has nothing but the actions, for tests of these. Used with `pytest.mark.urls`."""

from __future__ import annotations

from typing import Any

from django.contrib.admin import AdminSite
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path

from sqlqueue_app.dashboard.failure_actions import failure_action_pages, failure_buttons, selection_of
from sqlqueue_app.dashboard.page_admin import PageAdmin
from sqlqueue_app.dashboard.registration import register
from sqlqueue_app.models import FailedMessage

FAILURES = "/admin/sqlqueue_app/failedmessage/"


class FailureActionsAdmin(PageAdmin):
    def pages(self) -> list[URLPattern]:
        return [self.looks("", self.changelist_view), *failure_action_pages(self)]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        buttons = failure_buttons(request, self, selection_of(request))
        return HttpResponse("\n".join(f"{each.label}|{each.url}|{each.reason}" for each in buttons))


site = AdminSite(name="failures")
site.register(FailedMessage, FailureActionsAdmin)
register(site)
urlpatterns = [path("admin/", site.urls)]
