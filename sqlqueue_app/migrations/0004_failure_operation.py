"""The bulk operation that last changed the status of a failed message."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("sqlqueue_app", "0003_paused_by")]
    operations = [
        migrations.AddField(
            "failedmessage",
            "operation",
            models.UUIDField("operation", null=True, blank=True, help_text="the last bulk operation that changed its status"),
        ),
        migrations.AddIndex("failedmessage", models.Index(fields=["operation", "status"], name="sqlqueue_failure_operation")),
    ]
