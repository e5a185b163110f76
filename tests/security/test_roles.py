"""Least privilege on PostgreSQL: with the documented rights, each kind of process can do its work and nothing else."""

from __future__ import annotations

import io
import json
import uuid
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from sqlqueue_app import handles, publish, send, send_many
from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.errors import PermissionDenied
from sqlqueue_app.models import CallbackQueue, FailedMessage, Instance, Operation
from sqlqueue_app.status.instances import gone_callback_queues, remove_callback_queue
from tests.support.bench import FAST, Bench, Calls
from tests.support.delayed_tables import FORWARD
from tests.support.failing import fail, failed_row
from tests.support.filling import message, subscribe
from tests.support.pages import client_of
from tests.support.roles import OF_DJANGO, refuses, role_for
from tests.support.site_pages import site_paths
from tests.support.tables import execute

SCHEMA = "queues"
SETTINGS: dict[str, Any] = {
    "DEFAULT_SCHEMA": SCHEMA,
    "ENDPOINTS": {
        "Sales": {
            **FAST,
            "AUDIT_QUEUE": "audit",
            "CALLBACKS": True,
            "INSTANCE": "here",
            "LEGACY_SATELLITES": True,
            "DELAYED_RETRIES": 1,
            "DELAYED_RETRY_INCREASE": 0.001,
            "DEDUPLICATE_FOR": 60,
            "PURGE_ON_STARTUP": False,
        }
    },
    "SEND_AS": "Web",
    "ROUTES": {"Test.*": "Sales"},
    "SCHEDULES": {"nightly": {"CRON": "0 2 * * *", "SEND": "Test.Message"}},
    "METRICS": {"TOKEN": "s3cret"},
}
# Actions on foreign tables, actions of an owner, and actions on the server.
BEYOND = (
    f"CREATE TABLE {SCHEMA}.more (id int)",
    "CREATE TABLE public.more (id int)",
    "CREATE SCHEMA more",
    f'DROP TABLE {SCHEMA}."Sales"',
    f'ALTER TABLE {SCHEMA}."Sales" ADD COLUMN more int',
    f'TRUNCATE {SCHEMA}."Sales"',
    "SELECT * FROM hidden",
    "SELECT * FROM auth_user",
    "CREATE ROLE more",
)


@pytest.fixture
def shop(postgresql_bench: Bench) -> Bench:
    bench = postgresql_bench
    execute(bench.database, f"CREATE SCHEMA {SCHEMA}")
    execute(bench.database, "CREATE TABLE public.hidden (id int)")
    # This is the default from PostgreSQL 15 on.
    execute(bench.database, "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    bench.database.configure(**SETTINGS)
    bench.install()
    return bench


def output_of(*command: str) -> str:
    """The output of a command; health and check may end with an exit code."""
    out = io.StringIO()
    with suppress(SystemExit):
        call_command(*command, stdout=out, stderr=out)
    return out.getvalue()


def test_a_worker_reads_and_writes(shop: Bench, calls: Calls, caplog: pytest.LogCaptureFixture) -> None:
    @handles("Test.Message")
    def handle(message: Any, context: Any) -> None:
        calls.add(message["n"])
        if message["n"] == 2:
            raise LookupError("always")
        context.publish("Test.Happened", {})
        context.send("Test.Later", {}, delay=timedelta(milliseconds=1))

    @handles("Test.Later")
    def later(message: Any, context: Any) -> None:
        calls.add("later")

    with shop.database.as_role(role_for(shop.database, "worker")):
        send_many([("Test.Message", {"n": n}) for n in (1, 2)])
        shop.put(json.dumps({"NServiceBus.FailedQ": f'"{SCHEMA}"."Sales"'}), b"{}", queue="Sales.Retries")
        shop.run()
        assert shop.rows("Sales") == []
        assert len(shop.rows("error")) == 2
        assert len(shop.rows("audit")) >= 2
        assert calls.seen.count("later") == 1
        assert Instance.objects.filter(endpoint="Sales").exists() is False, "the worker has deleted its row"
        for command in (["sqlqueue_status"], ["sqlqueue_peek", "error"], ["sqlqueue_retry", "--all"], ["sqlqueue_health"]):
            assert "permission denied" not in output_of(*command)
        refuses(shop.database, *BEYOND)
    assert "permission denied" not in caplog.text


def test_message_to_a_schema_that_the_worker_may_not_use_does_not_block_its_queue(shop: Bench, calls: Calls) -> None:
    handles("Test.Message")(lambda message, context: calls.add(message["n"]) and None)
    to = '"pg_toast"."q"'
    shop.put(json.dumps({FORWARD: to}), b'{"n": 1}')
    shop.put(json.dumps({"NServiceBus.FailedQ": to}), b'{"n": 2}', queue="Sales.Retries")
    shop.put_message_of(3, "Test.Message", {"n": 3})
    with shop.database.as_role(role_for(shop.database, "worker")):
        shop.run()
    assert (calls.seen, shop.rows("Sales"), shop.rows("Sales.Retries")) == ([3], [], [])
    failed = shop.headers("error")
    assert [headers["NServiceBus.FailedQ"] for headers in failed] == [to, to]
    assert all("permission denied" in headers["NServiceBus.ExceptionInfo.Message"] for headers in failed)


def test_a_sender_sees_no_message(shop: Bench) -> None:
    subscribe(shop.database, "Sales", "Test.Happened")
    with shop.database.as_role(role_for(shop.database, "sender")):
        send("Test.Message", {"n": 1})
        send("Test.Message", {"n": 2}, delay=timedelta(hours=1))
        send("Test.Message", {"n": 3}, time_to_be_received=timedelta(hours=1))
        send_many([("Test.Message", {"n": n}) for n in range(600)])
        publish("Test.Happened", {})
        queue = f'{SCHEMA}."Sales"'
        refuses(
            shop.database,
            *BEYOND,
            f"SELECT headers FROM {queue}",
            f"DELETE FROM {queue}",
            f"UPDATE {queue} SET body = NULL",
            f'DELETE FROM {SCHEMA}."SubscriptionRouting"',
            "SELECT * FROM sqlqueue_app_failedmessage",
            "SELECT * FROM sqlqueue_app_notificationrule",
        )
    assert shop.table("Sales").depth().waiting == 603


def test_reader_cannot_change_anything(shop: Bench) -> None:
    fail(shop.database, [failed_row()])
    shop.table("Sales").send([message()])
    with shop.database.as_role(role_for(shop.database, "reader")):
        assert len(shop.rows("Sales")) == 1
        for command in (["sqlqueue_status"], ["sqlqueue_peek", "error"], ["sqlqueue_health"], ["sqlqueue_install", "--check"]):
            assert "permission denied" not in output_of(*command)
        assert Client().get("/sqlqueue/metrics", headers={"Authorization": "Bearer s3cret"}).status_code == 200
        assert FailedMessage.objects.count() == 1
        refuses(
            shop.database,
            *BEYOND,
            f'DELETE FROM {SCHEMA}."Sales"',
            f"INSERT INTO {SCHEMA}.\"Sales\" (id, headers) VALUES ('{uuid.uuid4()}', '')",
            "DELETE FROM sqlqueue_app_failedmessage",
            "INSERT INTO sqlqueue_app_claim (name) VALUES ('x')",
        )


def test_admin_process_needs_worker_rights_and_project_tables(shop: Bench) -> None:
    failed = fail(shop.database, [failed_row(failed_q=f'"{SCHEMA}"."Sales"')])
    shop.table("Sales").send([message()])
    browser = client_of("superuser")
    own = [f"GRANT SELECT ON {table} TO {{role}}" for table in OF_DJANGO]
    sessions = "GRANT SELECT, INSERT, UPDATE, DELETE ON django_session TO {role}"
    with shop.database.as_role(role_for(shop.database, "worker", *own, sessions)):
        answers = {name: browser.get(path) for name, path in site_paths().items()}
        assert [name for name, answer in answers.items() if answer.status_code not in {200, 302, 400, 404, 409}] == []
        assert [name for name, answer in answers.items() if b"permission denied" in answer.getvalue()] == []
        retry = reverse("admin:sqlqueue_app_failedmessage_retry")
        answer = browser.post(f"{retry}?ids={failed[0].pk}", {"confirmed": "1"}, follow=True)
        assert (answer.status_code, Operation.objects.count()) == (200, 1), answer.text
        refuses(shop.database, *[each for each in BEYOND if "auth_user" not in each], "UPDATE auth_user SET is_superuser = true")


def test_callback_queues_of_dead_processes_stay_if_the_role_may_not_drop_them(shop: Bench) -> None:
    theirs = shop.table("Sales.there")
    execute(shop.database, f"CREATE TABLE {theirs.qualified} (LIKE {shop.table('Sales').qualified})")
    for queue in ("Sales.here", theirs.address.table):
        CallbackQueue.objects.create(
            callback_queue=queue, endpoint="Sales", name="gone", used_at=timezone.now() - timedelta(minutes=5)
        )
    with shop.database.as_role(role_for(shop.database, "worker")):
        (gone,) = gone_callback_queues(get_settings())
        assert gone.name == "Sales.here"
        with pytest.raises(PermissionDenied, match="must be owner"):
            remove_callback_queue(gone)
        assert not Instance.objects.exists()
        assert len(gone_callback_queues(get_settings())) == 1


def test_installer_needs_one_schema_and_can_be_disabled_afterwards(shop: Bench) -> None:
    installer = shop.database.create_role("installer")
    execute(shop.database, "CREATE SCHEMA fresh")
    execute(shop.database, f'GRANT USAGE, CREATE ON SCHEMA fresh TO "{installer}"')
    shop.database.configure(**{**SETTINGS, "DEFAULT_SCHEMA": "fresh"})
    with shop.database.as_role(installer):
        call_command("sqlqueue_install", stdout=io.StringIO())
        out = io.StringIO()
        call_command("sqlqueue_install", "--check", stdout=out)
        assert "tables are as they should be" in out.getvalue()
        refuses(shop.database, "SELECT * FROM hidden", "CREATE TABLE public.more (id int)", f'SELECT * FROM {SCHEMA}."Sales"')
