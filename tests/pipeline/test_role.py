"""The pipeline as a role with the rights of `sqlqueue_install --sql --grant ROLE --for pipeline`, on PostgreSQL."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

from django.core.management import call_command

from sqlqueue_app.dialects.schema import PlannedTable, TableKind
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.tables.installation import install_tables
from sqlqueue_app.tables.queue import queue_table
from tests.support.databases import QueueDatabase
from tests.support.error_rows import failed
from tests.support.filling import install, message, row, table
from tests.support.roles import refuses, role_for
from tests.support.spark import CONF, MASTER
from tests.support.tables import execute

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_pipeline_role_can_only_do_the_work_of_the_pipeline(
    postgresql_database: QueueDatabase, spark: SparkSession, tmp_path: Path
) -> None:
    del spark
    database = postgresql_database
    pipeline = {"LAKE": str(tmp_path / "lake"), "MASTER": MASTER, "SPARK": CONF, "KEEP_DAYS": 30}
    install(database, ENDPOINTS={"Sales": {"AUDIT_QUEUE": "audit"}}, PIPELINE=pipeline)
    table(database, "audit").send([message(), message(), row("unreadable")])
    table(database, "error").send([failed("m-1")])
    table(database, "Sales").send([message()])
    with database.as_role(role_for(database, "pipeline")):
        out = io.StringIO()
        call_command("run_sqlqueue_pipeline", "--format", "json", stdout=out)
        result = json.loads(out.getvalue())
        assert (result["messages"], result["unreadable"], result["failures"], result["problems"]) == (2, 1, 1, [])
        refuses(
            database,
            'SELECT headers FROM "Sales"',
            'DELETE FROM "error"',
            "INSERT INTO \"audit\" (id, headers) VALUES (gen_random_uuid(), '')",
            "DELETE FROM sqlqueue_app_failedmessage",
            "SELECT * FROM auth_user",
            "CREATE SCHEMA more",
        )
    assert table(database, "audit").depth().waiting == 0
    assert table(database, "error").depth().waiting == 1


def test_pipeline_role_takes_from_the_queues_of_its_settings(
    postgresql_database: QueueDatabase, spark: SparkSession, tmp_path: Path
) -> None:
    del spark
    database = postgresql_database
    execute(database, "CREATE SCHEMA ops")
    queues = ("ops", "old"), ("public", "old errors")
    old, old_errors = (QueueAddress(name, schema, form="postgresql") for schema, name in queues)
    install_tables(database.alias, [PlannedTable(TableKind.QUEUE, each) for each in (old, old_errors)])
    pipeline = {"AUDIT_QUEUES": ['"ops"."old"'], "ERROR_QUEUES": ["old errors"]}
    lake = {"LAKE": str(tmp_path / "lake"), "MASTER": MASTER, "SPARK": CONF}
    install(database, ENDPOINTS={"Sales": {"AUDIT_QUEUE": "audit"}}, PIPELINE={**pipeline, **lake})
    queue_table(database.alias, old).send([message(), message()])
    queue_table(database.alias, old_errors).send([failed("m-1")])
    with database.as_role(role_for(database, "pipeline")):
        out = io.StringIO()
        call_command("run_sqlqueue_pipeline", "--format", "json", stdout=out)
        result = json.loads(out.getvalue())
        assert (result["messages"], result["failures"], result["problems"]) == (2, 1, [])
        refuses(database, 'DELETE FROM "old errors"', 'SELECT headers FROM "audit"')
    assert queue_table(database.alias, old).depth().waiting == 0
