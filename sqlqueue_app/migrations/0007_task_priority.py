"""The priority of a task."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("sqlqueue_app", "0006_unique_message")]
    operations = [
        migrations.AddField("taskresult", "priority", models.SmallIntegerField("priority", default=0, db_default=0)),
    ]
