"""The Django app: checks, the installation after `migrate`, and the app label under which queue models live."""

from __future__ import annotations

from django.apps import AppConfig, apps
from django.db.models.signals import post_migrate
from django.utils.translation import gettext_lazy as _


class SqlQueueConfig(AppConfig):
    """`INSTALLED_APPS = [..., "sqlqueue_app"]`. Being ready opens no connection and starts no thread."""

    name = "sqlqueue_app"
    verbose_name = _("SQL queues")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the checks, the queue models and the installation after `migrate`."""
        # Only now: these modules need the models of every app to be loaded.
        from sqlqueue_app import checks  # noqa: PLC0415
        from sqlqueue_app.installation import install_after_migrate, make_groups_after_migrate  # noqa: PLC0415
        from sqlqueue_app.models.queues import make_known_models, register_app  # noqa: PLC0415

        checks.register()
        register_app()
        make_known_models()
        if apps.is_installed("django.contrib.admin"):
            self._list_in_admin()
        post_migrate.connect(install_after_migrate, sender=self, dispatch_uid="sqlqueue_app.install_after_migrate")
        post_migrate.connect(make_groups_after_migrate, sender=self, dispatch_uid="sqlqueue_app.make_groups_after_migrate")

    @staticmethod
    def _list_in_admin() -> None:
        """After the projects' own `admin` modules, so that what they register is what stands."""
        from django.contrib import admin  # noqa: PLC0415

        from sqlqueue_app.dashboard.registration import register_tables  # noqa: PLC0415

        register_tables(admin.site)
