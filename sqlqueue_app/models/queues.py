"""Unmanaged Django models of queue tables, one class per queue, created from the settings without a database.

Public as `sqlqueue_app.models.queue_model`. The models are in an app of their own without migrations, which `makemigrations`
ignores.
"""

from __future__ import annotations

import hashlib
import re
import sys
import threading
import uuid
from typing import Any, cast

from django.apps import AppConfig, apps
from django.core.signals import setting_changed
from django.db import models
from django.dispatch import receiver
from django.utils.translation import gettext_lazy as _

from sqlqueue_app.conf import dialect_of, get_settings
from sqlqueue_app.dialects.dialect import Dialect, dialect
from sqlqueue_app.messages.addresses import AddressBook, QueueAddress
from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.models.fields import UtcInstantField

# A model name becomes the codename of permissions (100 characters, including "delete_") and a part of admin URLs.
_NAME_CHARACTERS = 60
# The label of a permission holds 255 characters, including "Can delete ".
_LABEL_CHARACTERS = 200
_PLAIN_NAME = re.compile(rf"(?!.*__)[A-Za-z][A-Za-z0-9_]{{0,{_NAME_CHARACTERS - 2}}}[A-Za-z0-9]\Z")

_lock = threading.RLock()
_models: dict[str, type[QueueMessage]] = {}


def queue_model(queue: str | QueueAddress) -> type[QueueMessage]:
    """The model of a queue table: `queue_model("Sales").objects.count()`. Safe from any thread.

    `queue` is the literal name of the table or an address, completed by the settings. The table need not exist and is not created.
    The same class is returned until settings change. Rows have `id`, `expires` (aware UTC), `headers` (JSON text), `body` (bytes)
    and the key `row_version`; on SQL Server and SQLite also `correlation_id`, `reply_to_address` and `recoverable`.
    ConfigurationError for invalid settings, AddressError for an unusable name.
    """
    settings = get_settings()
    known = dialect(dialect_of(settings.database))
    # Without the connection's catalog, so that a model follows the connection to a test database.
    book = settings.address_book(known.name)
    address = book.resolve(queue) if isinstance(queue, QueueAddress) else book.of_queue(queue)
    key = known.qualified(address)
    with _lock:
        if key not in _models:
            _models[key] = _make(known, book, address)
        return _models[key]


def queue_models() -> list[type[QueueMessage]]:
    """The models of the queues of endpoints and SEND_AS, and of their error and audit queues."""
    settings = get_settings()
    return [queue_model(address) for address in settings.queue_addresses(dialect_of(settings.database))]


def __getattr__(name: str) -> type[QueueMessage]:
    """The model of a class name, which `manage.py shell` and pickle import from here like any other model."""
    found = apps.all_models[QUEUE_MODELS_LABEL].get(name.lower())
    if found is None or found.__name__ != name:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return cast("type[QueueMessage]", found)


def create_known_models() -> None:
    """Create the models of all known queues for permissions and the admin. Does nothing if the settings are invalid."""
    try:
        queue_models()
    except ConfigurationError:
        pass  # a settings mistake must not keep `manage.py check` from reporting it


def _make(known: Dialect, book: AddressBook, address: QueueAddress) -> type[QueueMessage]:
    name = _class_name(known, book, address)
    db_table = known.qualified(address).replace("%", "%%")
    existing = apps.all_models[QUEUE_MODELS_LABEL].get(name.lower())
    if existing is not None:
        if existing._meta.db_table == db_table and issubclass(existing, QueueMessage):
            # The admin and others may keep a reference to it: equal settings give the same class.
            return existing
        del apps.all_models[QUEUE_MODELS_LABEL][name.lower()]
    label = (address.table if book.of_queue(address.table) == address else str(address))[:_LABEL_CHARACTERS]
    meta = {
        "app_label": QUEUE_MODELS_LABEL,
        "managed": False,
        "db_table": db_table,
        "verbose_name": label,
        "verbose_name_plural": label,
        "ordering": ["row_version"],
    }
    body: dict[str, Any] = {
        "__module__": QueueMessage.__module__,
        "__doc__": f"Messages of the queue {label!r}.",
        "objects": QueueMessageManager(),
        "Meta": type("Meta", (), meta),
        **_fields(known),
    }
    metaclass: Any = type(QueueMessage)
    made: type[QueueMessage] = metaclass(name, (QueueMessage,), body)
    return made


def _fields(known: Dialect) -> dict[str, models.Field[Any, Any]]:
    lower = known.name == "postgresql"

    def column(name: str) -> str:
        return name.lower() if lower else name

    fields: dict[str, models.Field[Any, Any]] = {
        "row_version": models.BigAutoField(primary_key=True, db_column="seq" if lower else "RowVersion"),
        "id": models.UUIDField("row id", default=uuid.uuid4, db_column=column("Id")),
    }
    if not lower:
        fields["correlation_id"] = models.CharField(max_length=255, null=True, blank=True, db_column="CorrelationId")
        fields["reply_to_address"] = models.CharField(max_length=255, null=True, blank=True, db_column="ReplyToAddress")
        fields["recoverable"] = models.BooleanField(default=True, db_column="Recoverable")
    fields["expires"] = UtcInstantField(null=True, blank=True, db_column=column("Expires"))
    fields["headers"] = models.TextField(default="{}", db_column=column("Headers"))
    fields["body"] = models.BinaryField(null=True, blank=True, default=b"", db_column=column("Body"))
    return fields


def _class_name(known: Dialect, book: AddressBook, address: QueueAddress) -> str:
    """The queue's name if it is a valid and unique class name; otherwise a part of it with a digest."""
    table = address.table
    same = {other for other in get_settings().queue_names() if other.lower() == table.lower()}
    if _PLAIN_NAME.match(table) and same <= {table} and book.of_queue(table) == address:
        return table
    digest = hashlib.sha256(known.qualified(address).encode("utf-8")).hexdigest()[:8]
    words = re.sub(r"[^A-Za-z0-9]+", "_", table)[: _NAME_CHARACTERS - len(digest) - len("Queue_")].strip("_")
    return f"{words if words[:1].isalpha() else f'Queue{words}'}_{digest}"


@receiver(setting_changed, dispatch_uid="sqlqueue_app.models.queues.forget")
def _forget(*, setting: str, **_: Any) -> None:
    if setting in ("SQLQUEUE", "DATABASES"):
        with _lock:
            _models.clear()
            apps.clear_cache()


class QueueMessageManager(models.Manager["QueueMessage"]):
    """Uses the database of `SQLQUEUE["DATABASE"]`, even without the router."""

    def get_queryset(self) -> models.QuerySet[QueueMessage]:
        """All rows of the queue, oldest first; respects `using()`."""
        using = self._db or get_settings().database
        return models.QuerySet(self.model, using=using, hints=self._hints)  # type: ignore[attr-defined]


class QueueMessage(models.Model):
    """A row of a queue table. Workers receive at the same time: a row that was read may be gone when it is saved."""

    objects = QueueMessageManager()

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self._meta.verbose_name} {self.pk}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Save to the database of the row, by default that of the queues."""
        if kwargs.get("using") is None:
            kwargs["using"] = self._state.db or get_settings().database
        super().save(*args, **kwargs)

    def delete(self, using: Any = None, keep_parents: bool = False) -> tuple[int, dict[str, int]]:
        """Delete from the database of the row, by default that of the queues."""
        return super().delete(using=using or self._state.db or get_settings().database, keep_parents=keep_parents)


QUEUE_MODELS_LABEL = "sqlqueue_queues"


class QueueModelsConfig(AppConfig):
    """Not for `INSTALLED_APPS`: `sqlqueue_app` adds it when it is ready."""

    name = "sqlqueue_app.models.queues"
    label = QUEUE_MODELS_LABEL
    verbose_name = _("SQL queues: tables")
    default_auto_field = "django.db.models.BigAutoField"


def register_app() -> None:
    """Add the app to Django's registry; may be called again.

    The dictionary of apps is replaced, because Django iterates over the old one while it calls `ready()`.
    """
    if QUEUE_MODELS_LABEL in apps.app_configs:
        return
    config = QueueModelsConfig(__name__, sys.modules[__name__])
    config.apps = apps
    # The registry's own dictionary: models that are created later appear in it.
    config.models = apps.all_models[QUEUE_MODELS_LABEL]
    # Django creates permissions and content types only for apps with a models module.
    config.models_module = config.module
    apps.app_configs = {**apps.app_configs, QUEUE_MODELS_LABEL: config}
    apps.clear_cache()
