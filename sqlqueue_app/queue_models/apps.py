"""The app of the queue models: a label of its own without migrations, so that `makemigrations` has nothing to say about them."""

from __future__ import annotations

import importlib

from django.apps import AppConfig, apps

QUEUE_MODELS_LABEL = "sqlqueue_queues"


class QueueModelsConfig(AppConfig):
    """Not for `INSTALLED_APPS`: `sqlqueue_app` adds it when it is ready."""

    name = "sqlqueue_app.queue_models"
    label = QUEUE_MODELS_LABEL
    verbose_name = "SQL queues: messages"
    default_auto_field = "django.db.models.BigAutoField"


def register_app() -> None:
    """Add the app to Django's registry; harmless when called again.

    A new dictionary takes the place of the old one, because Django walks the old one while it calls `ready()`.
    """
    if QUEUE_MODELS_LABEL in apps.app_configs:
        return
    config = QueueModelsConfig("sqlqueue_app.queue_models", importlib.import_module("sqlqueue_app.queue_models"))
    config.apps = apps
    # The registry hands out its own dictionary of this label; models that are made later appear in it.
    config.models = apps.all_models[QUEUE_MODELS_LABEL]
    # Permissions and content types are made for apps that have a models module; this one makes its models while running.
    config.models_module = config.module
    apps.app_configs = {**apps.app_configs, QUEUE_MODELS_LABEL: config}
    apps.clear_cache()
