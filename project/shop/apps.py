"""The app of the shop."""

from __future__ import annotations

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """`INSTALLED_APPS = [..., "sqlqueue_app", "project.shop"]`."""

    name = "project.shop"
    label = "shop"
    default_auto_field = "django.db.models.BigAutoField"
