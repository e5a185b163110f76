from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("sqlqueue_app", "0001_initial")]
    operations = [
        migrations.CreateModel(
            name="CallbackQueue",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "callback_queue",
                    models.CharField("callback queue", max_length=255, unique=True, help_text="literal name of the table"),
                ),
                ("endpoint", models.CharField("endpoint", max_length=255)),
                ("name", models.CharField("instance", max_length=255)),
                ("used_at", models.DateTimeField("last used at")),
                ("made", models.BooleanField("made by a process", default=False)),
            ],
        ),
        migrations.AddField(
            "instance",
            "process_identity",
            models.CharField(
                "process identity", max_length=100, null=True, blank=True, help_text="on SQLite: its boot, pid namespace and start"
            ),
        ),
    ]
