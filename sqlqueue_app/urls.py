"""What a project includes besides the admin: `path("sqlqueue/", include("sqlqueue_app.urls"))`."""

from __future__ import annotations

from django.urls import path

from sqlqueue_app.metrics.views import metrics

app_name = "sqlqueue"
urlpatterns = [path("metrics", metrics, name="metrics")]
