"""The URLs of the test site: the admin and the URLs that projects include."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

urlpatterns = [path("admin/", admin.site.urls), path("sqlqueue/", include("sqlqueue_app.urls"))]
