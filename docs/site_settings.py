"""The Django settings under which the documentation site imports the app."""

from __future__ import annotations

SECRET_KEY = "documentation"  # noqa: S105  # signs nothing
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "sqlqueue_app"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
