from django.db import migrations

from sqlqueue_app.migration_operations import CreateDelayedTable, CreateQueue, CreateSubscriptionTable


class Migration(migrations.Migration):
    dependencies = [
        ("shop", "0001_initial"),
    ]

    operations = [
        CreateQueue("Sales"),
        CreateDelayedTable("Sales.Delayed"),
        CreateQueue("error"),
        CreateQueue("Billing"),
        CreateDelayedTable("Billing.Delayed"),
        CreateQueue("Shipping"),
        CreateDelayedTable("Shipping.Delayed"),
        CreateSubscriptionTable("SubscriptionRouting"),
    ]
