"""A project may register the model of a queue itself and use Django's pages."""

from __future__ import annotations

from types import ModuleType

from django.contrib import admin
from django.urls import path
from pytest_django import Settings

from sqlqueue_app.models import queue_model
from tests.support.databases import QueueDatabase
from tests.support.filling import install, message, table
from tests.support.pages import client_of


def test_queue_model_can_be_browsed_in_the_admin(queue_database: QueueDatabase, settings: Settings) -> None:
    install(queue_database)
    table(queue_database, "Sales").send([message(), message()])
    model = queue_model("Sales")
    site = admin.AdminSite(name="projects_own")
    site.register(model)
    urls = ModuleType("urls_of_the_project")
    urls.urlpatterns = [path("admin/", admin.site.urls), path("own/", site.urls)]  # type: ignore[attr-defined]
    settings.ROOT_URLCONF = urls
    number = model._default_manager.first().pk  # type: ignore[union-attr]

    listed = client_of("superuser").get("/own/sqlqueue_queues/sales/")
    seen = client_of("superuser").get(f"/own/sqlqueue_queues/sales/{number}/change/")

    assert listed.status_code == 200
    assert "2 Sales" in listed.content.decode()
    assert seen.status_code == 200
    assert model._default_manager.count() == 2
