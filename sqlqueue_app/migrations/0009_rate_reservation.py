"""The next free times of rate limits."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("sqlqueue_app", "0008_database_schedules")]
    operations = [
        migrations.CreateModel(
            name="RateReservation",
            fields=[
                ("id", models.UUIDField("id", primary_key=True, serialize=False)),
                ("endpoint", models.CharField("endpoint", max_length=255)),
                ("message_type", models.CharField("message type", max_length=255)),
                (
                    "reserved_until",
                    models.BigIntegerField("reserved until", help_text="microseconds since 1970, by the clock of the database"),
                ),
                (
                    "handled_until",
                    models.BigIntegerField("handled until", help_text="the end of the interval of the last message"),
                ),
            ],
            options={
                "verbose_name": "rate reservation",
                "verbose_name_plural": "rate reservations",
                "default_permissions": (),
            },
        ),
    ]
