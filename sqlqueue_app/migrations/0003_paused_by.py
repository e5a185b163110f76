from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("sqlqueue_app", "0002_callback_queues")]
    operations = [
        migrations.AddField(
            "instance",
            "paused_by",
            models.CharField(
                "paused by", max_length=255, blank=True, default="", db_default="", help_text="the operator who paused it last"
            ),
        ),
        migrations.AlterField(
            "instance",
            "process_identity",
            models.CharField(
                "process identity", max_length=100, null=True, blank=True, help_text="its boot, pid namespace and start"
            ),
        ),
    ]
