"""Model fields: an instant stored as a wall clock in UTC without a zone, and JSON kept as ASCII text."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from django import forms
from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import timezone

_Set = TypeVar("_Set", contravariant=True)
_Get = TypeVar("_Get", covariant=True)

if TYPE_CHECKING:
    # Generic, so that the plugin of mypy sets the types by `null`.
    _DateTimeField = models.DateTimeField
else:

    class _DateTimeField(models.DateTimeField):
        def __class_getitem__(cls, _types):
            return cls


class UtcInstantField(_DateTimeField[_Set, _Get]):
    """An aware instant in Python; naive UTC in the column, whatever the connection's time zone and `USE_TZ`.

    A naive value is in the current time zone, as for Django's own field. SQLite stores text with milliseconds.
    """

    # Django converts values of its own DateTimeField by the connection's time zone; this name keeps it from doing so.
    def get_internal_type(self) -> str:
        """A type name that no database backend converts."""
        return "SqlQueueUtcInstantField"

    def db_type(self, connection: BaseDatabaseWrapper) -> str:
        """The type of the column, for casts; the installer creates the tables."""
        return "timestamp without time zone" if connection.vendor == "postgresql" else "datetime"

    def get_prep_value(self, value: Any) -> Any:
        """The instant as naive UTC."""
        value = self.to_python(value)
        if value is None:
            return None
        if timezone.is_naive(value):
            value = timezone.make_aware(value)
        return value.astimezone(UTC).replace(tzinfo=None)

    def get_db_prep_value(self, value: Any, connection: BaseDatabaseWrapper, prepared: bool = False) -> Any:
        """The value for the driver: text on SQLite, in the format that the statements compare."""
        if not prepared:
            value = self.get_prep_value(value)
        if isinstance(value, datetime) and connection.vendor == "sqlite":
            return value.isoformat(" ", "milliseconds")
        return value

    def from_db_value(self, value: Any, expression: object, connection: BaseDatabaseWrapper) -> datetime | None:
        """Aware UTC; None for text that is not an instant, which SQLite allows."""
        if isinstance(value, str):
            try:
                value = datetime.fromisoformat(value)
            except ValueError:
                return None
        if value is None:
            return None
        instant: datetime = value
        return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)


if TYPE_CHECKING:
    _TextField = models.TextField[Any, Any]
else:
    _TextField = models.TextField


class JsonTextField(_TextField):
    """JSON as ASCII text, NULL for None. Unlike `jsonb` it accepts Python's NaN, U+0000 and lone surrogates."""

    if TYPE_CHECKING:
        _pyi_private_set_type: Any
        _pyi_private_get_type: Any

    def to_python(self, value: Any) -> Any:
        """The value of a text in a fixture."""
        if isinstance(value, str):
            with suppress(ValueError):
                return json.loads(value)
        return value

    def clean(self, value: Any, model_instance: models.Model | None) -> Any:
        """The value itself, checked but not parsed: a text in a row is already a value."""
        self.validate(value, model_instance)
        self.run_validators(value)
        return value

    def value_to_string(self, obj: models.Model) -> Any:
        """The text for a fixture, in any of its formats."""
        return self.get_prep_value(self.value_from_object(obj))

    def get_prep_value(self, value: Any) -> Any:
        """The text. TypeError or ValueError for a value that is not JSON."""
        return None if value is None else json.dumps(value)

    def from_db_value(self, value: Any, expression: object, connection: BaseDatabaseWrapper) -> Any:
        """The value; ValueError for invalid text."""
        return None if value is None else json.loads(value)

    def formfield(self, **options: Any) -> Any:  # type: ignore[override]
        """A field that shows and reads the text."""
        return super().formfield(**{"form_class": forms.JSONField, **options})
