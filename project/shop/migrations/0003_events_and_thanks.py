from __future__ import annotations

from django.db import migrations, models

from sqlqueue_app.migration_operations import CreateDelayedTable, CreateQueue


class Migration(migrations.Migration):
    dependencies = [
        ("shop", "0002_create_queues"),
    ]

    operations = [
        CreateQueue("Web"),
        CreateDelayedTable("Web.Delayed"),
        migrations.AddField(model_name="invoice", name="closed", field=models.BooleanField(default=False)),
        migrations.AddField(model_name="order", name="thanked", field=models.BooleanField(default=False)),
        migrations.AddField(model_name="shipment", name="closed", field=models.BooleanField(default=False)),
    ]
