"""The Django app: checks, the installation after `migrate`, and the app label under which queue models live."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from django.apps import AppConfig, apps
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.models.signals import post_migrate
from django.utils.translation import gettext_lazy as _


class SqlQueueConfig(AppConfig):
    """`INSTALLED_APPS = [..., "sqlqueue_app"]`. Startup opens no connection and starts no thread."""

    name = "sqlqueue_app"
    verbose_name = _("SQL queues")
    default_auto_field = "django.db.models.BigAutoField"

    def __init__(self, app_name: str, app_module: Any) -> None:
        """End an sqlqueue command with one line and exit code 2 if a driver is missing, before Django fails with a traceback."""
        super().__init__(app_name, app_module)
        try:
            if "sqlqueue" in "".join(sys.argv[1:2]):
                # Django's models load this one; others may lack their driver if the command only prints SQL.
                connections[DEFAULT_DB_ALIAS]
        except (ImproperlyConfigured, ImportError) as error:
            extras = "pip install 'django-sqlqueue[postgres]' or 'django-sqlqueue[mssql]'; SQLite needs none"
            extras += "; no other database is supported"
            sys.stderr.write(f"CommandError: {error}".partition(". ")[0].splitlines()[0].rstrip(".") + f": {extras}\n")
            raise SystemExit(2) from error

    def ready(self) -> None:
        """Register the checks, the queue models and the installation after `migrate`."""
        # Imported here because these modules need the models of all apps.
        from sqlqueue_app import checks  # noqa: PLC0415
        from sqlqueue_app.installation import create_groups_after_migrate, install_after_migrate  # noqa: PLC0415
        from sqlqueue_app.models.queues import create_known_models, register_app  # noqa: PLC0415
        from sqlqueue_app.sending import sender  # noqa: PLC0415

        checks.register()
        register_app()
        create_known_models()
        # Loaded when it is used: it imports most of the app.
        sender.eager_module = lambda: import_module("sqlqueue_app.testing.eager")
        if apps.is_installed("django.contrib.admin"):
            self._list_in_admin()
        post_migrate.connect(install_after_migrate, sender=self, dispatch_uid="sqlqueue_app.install_after_migrate")
        post_migrate.connect(create_groups_after_migrate, sender=self, dispatch_uid="sqlqueue_app.create_groups_after_migrate")

    @staticmethod
    def _list_in_admin() -> None:
        """Register after the project's own `admin` modules, so that their registrations take precedence."""
        from django.contrib import admin  # noqa: PLC0415

        from sqlqueue_app.dashboard.registration import register_tables  # noqa: PLC0415

        register_tables(admin.site)
        if "sqlqueue_app.sagas.model" in sys.modules:
            from sqlqueue_app.sagas.saga_admin import register_sagas  # noqa: PLC0415

            register_sagas(admin.site)
