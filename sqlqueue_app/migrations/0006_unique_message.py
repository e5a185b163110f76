"""The messages that were sent with a unique key."""

from __future__ import annotations

from django.db import migrations, models

from sqlqueue_app.models.fields import UtcInstantField


class Migration(migrations.Migration):
    dependencies = [("sqlqueue_app", "0005_attempts_and_tasks")]
    operations = [
        migrations.CreateModel(
            name="UniqueMessage",
            fields=[
                ("id", models.UUIDField("id", primary_key=True, serialize=False)),
                ("key", models.CharField("key", max_length=255, help_text="its first characters")),
                ("queue", models.CharField("queue", max_length=255)),
                ("message_id", models.TextField("message id")),
                ("sent_at", UtcInstantField("sent at", help_text="by the clock of the database")),
                ("unique_until", UtcInstantField("unique until", db_index=True, help_text="and for as long as the message waits")),
            ],
            options={"verbose_name": "unique message", "verbose_name_plural": "unique messages", "default_permissions": ()},
        ),
    ]
