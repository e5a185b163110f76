"""The form of a schedule that is defined in the database."""

from __future__ import annotations

from datetime import datetime, tzinfo
from typing import Any, ClassVar, Final

from django import forms
from django.utils import timezone
from django.utils.translation import gettext as _, gettext_lazy

from sqlqueue_app.conf import get_settings
from sqlqueue_app.models import Schedule, ScheduleKind
from sqlqueue_app.receiving.instances import managed_alias
from sqlqueue_app.status.schedule_definitions import clean_definition, times_of, zone_of
from sqlqueue_app.status.schedules import has_route
from sqlqueue_app.status.texts import PLAIN_INPUT
from sqlqueue_app.tables.connections import database_now

_INSTANTS: Final = ("at", "starts_at", "ends_at")


class ScheduleForm(forms.ModelForm):  # type: ignore[type-arg]
    """A schedule of the database. Its instants are read and shown in its own time zone."""

    kind = forms.ChoiceField(label=gettext_lazy("Kind"), choices=ScheduleKind.choices)

    class Meta:
        model = Schedule
        fields = (
            "name", "message_type", "body", "destination", "kind", "cron", "every_seconds", "at", "time_zone",
            "starts_at", "ends_at", "missed",
        )  # fmt: skip
        labels: ClassVar = {"name": gettext_lazy("Name"), "message_type": gettext_lazy("Message type")}
        widgets: ClassVar = {
            **{name: forms.TextInput(PLAIN_INPUT) for name in ("name", "message_type", "destination", "cron")},
            **{name: forms.DateTimeInput({"type": "datetime-local", "step": "1"}, "%Y-%m-%dT%H:%M:%S") for name in _INSTANTS},
            "body": forms.Textarea({"rows": 3, "spellcheck": "false"}),
            "time_zone": forms.TextInput({**PLAIN_INPUT, "list": "sq-suggestions"}),
        }
        help_texts: ClassVar = {
            "body": gettext_lazy("A JSON object."),
            "destination": gettext_lazy(
                "The address of a queue. Empty: the queue of the route, or of the endpoint that handles it."
            ),
            "cron": gettext_lazy("For a crontab line: minute, hour, day of the month, month, weekday, such as 0 2 * * *."),
            "every_seconds": gettext_lazy("For an interval, which counts from the start."),
            "at": gettext_lazy("For a message that is sent once."),
            "time_zone": gettext_lazy("For the times on this page and for a crontab line. Empty: the zone of the settings."),
        }

    def full_clean(self) -> None:
        """Read instants in the zone of the form."""
        with timezone.override(self._zone(self.data.get("time_zone", ""))):
            super().full_clean()

    def get_initial_for_field(self, field: forms.Field, field_name: str) -> Any:
        """The value to show; an instant in the zone of the schedule, an empty body as an object."""
        value = super().get_initial_for_field(field, field_name)
        if isinstance(value, datetime):
            return value.astimezone(self._zone(self.instance.time_zone)).replace(tzinfo=None)
        return {} if field_name == "body" and value is None else value

    def clean(self) -> dict[str, Any]:
        """The values; errors unless the schedule has times, and its message a queue."""
        now, row = database_now(managed_alias()), self.instance
        for name, value in self.cleaned_data.items():
            setattr(row, name, value)
        if row.kind == ScheduleKind.INTERVAL and row.starts_at is None and "starts_at" not in self.errors:
            row.starts_at = now
        for name, text in clean_definition(row):
            self.add_error(name, text)
        if not self.errors and not row.destination and not has_route(get_settings(), row.message_type):
            self.add_error(
                "destination", _("No route leads to a queue for this type, and no endpoint handles it: enter an address.")
            )
        if not self.errors and times_of(row).next_after(now) is None:
            self.add_error(None, _("The schedule has no time in the future."))
        return {name: getattr(row, name) for name in self.cleaned_data}

    def _zone(self, name: str) -> tzinfo:
        try:
            return zone_of(name.strip())
        except ValueError:
            return timezone.get_default_timezone()
