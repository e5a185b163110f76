"""Details of a failed attempt: its worker and times, and when and how it was sent again. An index for the list of tasks."""

from __future__ import annotations

from django.db import migrations, models

from sqlqueue_app.models.fields import UtcInstantField


class Migration(migrations.Migration):
    dependencies = [("sqlqueue_app", "0004_failure_operation")]
    operations = [
        migrations.AddField(
            "failedattempt",
            "worker",
            models.CharField("worker", max_length=255, blank=True, default="", db_default="", help_text="the host that handled it"),
        ),
        migrations.AddField("failedattempt", "started_at", UtcInstantField("handler started at", null=True, blank=True)),
        migrations.AddField("failedattempt", "delayed_at", UtcInstantField("last delayed retry at", null=True, blank=True)),
        migrations.AddField("failedattempt", "retried_at", UtcInstantField("retried at", null=True, blank=True)),
        migrations.AddField(
            "failedattempt",
            "operation",
            models.UUIDField("operation", null=True, blank=True, help_text="the bulk operation that retried it"),
        ),
        migrations.AddField(
            "failedattempt",
            "copy_id",
            models.CharField("message id of the copy", max_length=64, blank=True, default="", db_default=""),
        ),
        migrations.AlterModelOptions("taskresult", options={"verbose_name": "task", "verbose_name_plural": "tasks"}),
        migrations.AlterModelOptions(
            "distributedtransaction",
            options={
                "verbose_name": "in-doubt transaction",
                "verbose_name_plural": "in-doubt transactions",
                "default_permissions": (),
            },
        ),
        migrations.AddIndex("taskresult", models.Index(fields=["enqueued_at", "id"], name="sqlqueue_task_newest")),
    ]
