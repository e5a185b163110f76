"""The field of an instant that is stored as a wall clock in UTC without zone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import timezone

if TYPE_CHECKING:
    _DateTimeField = models.DateTimeField[Any, datetime | None]
else:
    _DateTimeField = models.DateTimeField


class UtcInstantField(_DateTimeField):
    """An aware instant in Python; naive UTC in the column, whatever the connection's time zone and `USE_TZ` say.

    A naive value means the current time zone, as with Django's own field. Milliseconds on SQLite, where instants are text.
    """

    # Django converts values of its own DateTimeField by the connection's time zone; this name keeps it from doing so.
    def get_internal_type(self) -> str:
        """A name that no database backend converts."""
        return "SqlQueueUtcInstantField"

    def db_type(self, connection: BaseDatabaseWrapper) -> str:
        """The type of the column, for casts; the tables themselves are made by the installer."""
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
        """What the driver takes: text on SQLite, in the form that the statements compare with."""
        if not prepared:
            value = self.get_prep_value(value)
        if isinstance(value, datetime) and connection.vendor == "sqlite":
            return value.isoformat(" ", "milliseconds")
        return value

    def from_db_value(self, value: Any, expression: object, connection: BaseDatabaseWrapper) -> datetime | None:
        """Aware UTC; None for text that is no instant, which SQLite does not keep out."""
        if isinstance(value, str):
            try:
                value = datetime.fromisoformat(value)
            except ValueError:
                return None
        if value is None:
            return None
        instant: datetime = value
        return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)
