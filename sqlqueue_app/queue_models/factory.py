"""One model class per queue table, from the settings alone: no database is asked."""

from __future__ import annotations

import hashlib
import re
import threading
import uuid
from typing import Any

from django.apps import apps
from django.core.signals import setting_changed
from django.db import models
from django.dispatch import receiver

from sqlqueue_app.conf import dialect_of, get_settings
from sqlqueue_app.databases.dialect import Dialect, dialect
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.messages.resolution import AddressBook
from sqlqueue_app.queue_models.apps import QUEUE_MODELS_LABEL
from sqlqueue_app.queue_models.base import QueueMessage, QueueMessageManager
from sqlqueue_app.queue_models.fields import UtcInstantField

# A model name becomes the codename of permissions (100 characters, "delete_" among them) and a part of admin addresses.
_NAME_CHARACTERS = 60
# The label of a permission holds 255 characters, "Can delete " among them.
_LABEL_CHARACTERS = 200
_PLAIN_NAME = re.compile(rf"(?!.*__)[A-Za-z][A-Za-z0-9_]{{0,{_NAME_CHARACTERS - 2}}}[A-Za-z0-9]\Z")

_lock = threading.RLock()
_models: dict[str, type[QueueMessage]] = {}


def queue_model(queue: str | QueueAddress) -> type[QueueMessage]:
    """The model of a queue table: `queue_model("Sales").objects.count()`.

    `queue` is the literal name of the table, or an address; what it leaves out is filled in by the settings. The table need not
    exist, and none is made. Without a change of settings the same class comes back each time. Rows have `id`, `expires` (aware
    UTC), `headers` (JSON text), `body` (bytes) and the key `row_version`; on SQL Server and SQLite also `correlation_id`,
    `reply_to_address` and `recoverable`. ConfigurationError if the settings are wrong, AddressError for a name that cannot be used.
    Safe from any thread.
    """
    settings = get_settings()
    known = dialect(dialect_of(settings.database))
    # Without the connection's own catalog: a model then follows the connection into the database that a test run made.
    book = settings.address_book(known.name)
    address = book.resolve(queue) if isinstance(queue, QueueAddress) else book.of_queue(queue)
    key = known.qualified(address)
    with _lock:
        if key not in _models:
            _models[key] = _make(known, book, address)
        return _models[key]


def queue_models() -> list[type[QueueMessage]]:
    """The models of every queue that the endpoints of the settings receive from, and of their error and audit queues."""
    settings = get_settings()
    return [queue_model(address) for address in settings.queue_addresses(dialect_of(settings.database))]


def make_known_models() -> None:
    """Make the models of every known queue, so that permissions and the admin find them; none where the settings are wrong.

    Called when the app is ready; the system checks report what is wrong.
    """
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
            # The admin and others may hold on to it: settings that say the same give the same class.
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
    """The queue's own name where it can be a class name and is no other known queue's; else a part of it with a digest."""
    table = address.table
    same = {other for other in get_settings().queue_names() if other.lower() == table.lower()}
    if _PLAIN_NAME.match(table) and same <= {table} and book.of_queue(table) == address:
        return table
    digest = hashlib.sha256(known.qualified(address).encode("utf-8")).hexdigest()[:8]
    words = re.sub(r"[^A-Za-z0-9]+", "_", table)[: _NAME_CHARACTERS - len(digest) - len("Queue_")].strip("_")
    return f"{words if words[:1].isalpha() else f'Queue{words}'}_{digest}"


@receiver(setting_changed, dispatch_uid="sqlqueue_app.queue_models.forget")
def _forget(*, setting: str, **_: Any) -> None:
    if setting in ("SQLQUEUE", "DATABASES"):
        with _lock:
            _models.clear()
            apps.clear_cache()
