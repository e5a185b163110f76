from django.db import migrations, models

from sqlqueue_app.queue_models.json_text import JsonTextField


class Migration(migrations.Migration):
    dependencies = [
        ("sqlqueue_app", "0003_handled_messages"),
    ]

    operations = [
        migrations.CreateModel(
            name="TaskResult",
            fields=[
                ("id", models.CharField(max_length=64, primary_key=True, serialize=False, verbose_name="id")),
                ("backend", models.CharField(help_text="its alias in TASKS", max_length=255, verbose_name="backend")),
                ("task", models.TextField(help_text="dotted path of its function", verbose_name="task")),
                ("queue_name", models.CharField(help_text="as the task names it", max_length=255, verbose_name="queue")),
                ("run_after", models.DateTimeField(blank=True, null=True, verbose_name="run after")),
                ("args", JsonTextField(verbose_name="positional arguments")),
                ("kwargs", JsonTextField(verbose_name="keyword arguments")),
                ("status", models.CharField(max_length=16, verbose_name="status")),
                ("enqueued_at", models.DateTimeField(verbose_name="enqueued at")),
                ("started_at", models.DateTimeField(blank=True, null=True, verbose_name="started at")),
                ("last_attempted_at", models.DateTimeField(blank=True, null=True, verbose_name="last attempted at")),
                ("finished_at", models.DateTimeField(blank=True, null=True, verbose_name="finished at")),
                (
                    "errors",
                    JsonTextField(help_text="class path and traceback of each attempt that failed", verbose_name="errors"),
                ),
                ("worker_ids", JsonTextField(help_text="one for each attempt", verbose_name="workers")),
                ("return_value", JsonTextField(blank=True, null=True, verbose_name="return value")),
            ],
            options={
                "verbose_name": "result of a task",
                "verbose_name_plural": "results of tasks",
                "indexes": [models.Index(fields=["backend", "finished_at"], name="sqlqueue_task_finished")],
            },
        ),
    ]
