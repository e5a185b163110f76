"""Schedules that are defined in the database, and the record of runs by hand."""

from __future__ import annotations

from django.db import migrations, models

from sqlqueue_app.models.fields import JsonTextField, UtcInstantField


class Migration(migrations.Migration):
    dependencies = [("sqlqueue_app", "0007_task_priority")]
    operations = [
        migrations.AddField(
            "schedule",
            "kind",
            models.CharField(
                "kind",
                max_length=20,
                choices=[("cron", "crontab line"), ("interval", "interval"), ("once", "once")],
                blank=True,
                default="",
                db_default="",
            ),
        ),
        migrations.AddField(
            "schedule", "cron", models.CharField("crontab line", max_length=255, blank=True, default="", db_default="")
        ),
        migrations.AddField("schedule", "every_seconds", models.PositiveIntegerField("interval (s)", null=True, blank=True)),
        migrations.AddField("schedule", "at", UtcInstantField("time", null=True, blank=True)),
        migrations.AddField(
            "schedule", "time_zone", models.CharField("time zone", max_length=64, blank=True, default="", db_default="")
        ),
        migrations.AddField("schedule", "starts_at", UtcInstantField("start", null=True, blank=True)),
        migrations.AddField("schedule", "ends_at", UtcInstantField("end", null=True, blank=True)),
        migrations.AddField(
            "schedule",
            "missed",
            models.CharField(
                "missed times",
                max_length=20,
                choices=[
                    ("send", "send the last one, up to a day late"),
                    ("skip", "skip it if it is more than a minute late"),
                ],
                default="send",
                db_default="send",
            ),
        ),
        migrations.AddField(
            "schedule", "destination", models.CharField("destination", max_length=400, blank=True, default="", db_default="")
        ),
        migrations.AddField("schedule", "body", JsonTextField("body", null=True, blank=True)),
        migrations.AddField("schedule", "next_at", UtcInstantField("next time", null=True, blank=True)),
        migrations.AddConstraint(
            "schedule",
            models.UniqueConstraint(
                fields=["name"],
                condition=models.Q(kind__gt=""),
                name="sqlqueue_schedule_name_once",
                violation_error_message="There is a schedule of this name.",
            ),
        ),
        migrations.AddField(
            "scheduletick",
            "manual_run",
            models.CharField(
                "run by hand",
                max_length=64,
                blank=True,
                default="",
                db_default="",
                help_text="begin of its message id; empty for a tick",
            ),
        ),
        migrations.RemoveConstraint("scheduletick", "sqlqueue_tick_once"),
        migrations.AddConstraint(
            "scheduletick",
            models.UniqueConstraint(fields=["schedule", "message_type", "tick", "manual_run"], name="sqlqueue_tick_once"),
        ),
    ]
