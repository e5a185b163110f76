"""Secrets of the settings and of the app's own tables appear in no log, message, page or output, wherever an error is."""

from __future__ import annotations

import io
import json
import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.core import checks
from django.core.management import call_command
from django.db import connections
from django.test import Client

from sqlqueue_app import handles
from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.errors import SqlQueueError
from sqlqueue_app.models import NotificationDelivery, NotificationRule
from sqlqueue_app.monitoring.rules import new_delivery
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.worker.run import RunOptions, run_worker
from tests.support.bench import FAST, Bench
from tests.support.databases import QueueDatabase
from tests.support.pages import client_of
from tests.support.ports import free_port
from tests.support.provisioning import point
from tests.support.site_pages import site_paths

MARK = "S3CRET"
PASSWORD, TOKEN, KEY, SIGNING, WEBHOOK = f"pw-{MARK}", f"token-{MARK}", f"key-{MARK}", f"django-{MARK}", f"whsec_{MARK * 5}"
# The path of a webhook is visible only to users who may change the rule.
RULES = "sqlqueue_app_notificationrule"
PATH = "T0KEN-of-a-path"
SPARK = {"spark.hadoop.fs.s3a.secret.key": KEY, "spark.hadoop.fs.s3a.access.key": f"id-{MARK}"}
SETTINGS: dict[str, Any] = {
    "ENDPOINTS": {"Sales": FAST},
    "METRICS": {"TOKEN": TOKEN},
    "PIPELINE": {"LAKE": "s3a://lake/x", "SPARK": SPARK},
}
COMMANDS = [
    ["check", "--database", "ALIAS"],
    ["sqlqueue_status"],
    ["sqlqueue_status", "--format", "json"],
    ["sqlqueue_health"],
    ["sqlqueue_peek", "Sales"],
    ["sqlqueue_install"],
    ["sqlqueue_install", "--check"],
    ["sqlqueue_install", "--sql"],
    ["sqlqueue_send", "Sales", "--type", "Test.Message", "--body", "{}"],
    ["sqlqueue_purge", "Sales", "--yes"],
    ["sqlqueue_retry", "--all"],
    ["sqlqueue_subscriptions"],
    ["sqlqueue_purge_callbacks", "--yes"],
    ["run_sqlqueue_worker", "--until-empty", "--processes", "0", "--endpoint", "None such"],
]


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """Everything logged or printed, including tracebacks."""
    caplog.set_level(logging.DEBUG)

    def read() -> str:
        formatter = logging.Formatter("%(message)s %(exc_text)s")
        out = capfd.readouterr()
        return "\n".join([caplog.text, *(formatter.format(each) + repr(each.__dict__) for each in caplog.records), *out])

    return read


def output_of(*command: str) -> str:
    """The output of a command, and the whole chain of errors if it fails."""
    out = io.StringIO()
    try:
        call_command(*command, stdout=out, stderr=out)
    except SystemExit:
        pass
    except Exception as error:  # noqa: BLE001 -- any error is searched for secrets
        return out.getvalue() + "".join(traceback.format_exception(error))
    return out.getvalue()


@contextmanager
def away(database: QueueDatabase, **changed: Any) -> Iterator[None]:
    """Make the database unreachable, with one of the secrets as its password."""
    before = {name: connections.settings[database.alias][name] for name in ("HOST", "PORT", "PASSWORD")}
    point(database.alias, **{"HOST": "127.0.0.1", "PORT": str(free_port()), "PASSWORD": PASSWORD, **changed})
    try:
        yield
    finally:
        point(database.alias, **before)


def test_a_database_that_refuses(postgresql_bench: Bench, logged: Callable[[], str], settings: Any) -> None:
    bench = postgresql_bench
    settings.SECRET_KEY = SIGNING
    bench.database.configure(**SETTINGS)
    browsers = [client_of("superuser"), client_of("anonymous")]
    for browser in browsers:
        browser.raise_request_exception = False
    texts = []
    with away(bench.database):
        texts += [output_of(*(word.replace("ALIAS", bench.database.alias) for word in command)) for command in COMMANDS]
        stop = StopSignal()
        stop.set()
        with suppress(SqlQueueError):
            run_worker(get_settings(), RunOptions(until_empty=False), stop)
        texts += [browser.get(path).getvalue().decode() for browser in browsers for path in list(site_paths().values())[:6]]
        texts.append(browsers[1].get("/sqlqueue/metrics", headers={"Authorization": f"Bearer {TOKEN}"}).text)
    assert any("connection" in text for text in texts), "the database refused connections"
    assert MARK not in "\n".join(texts)
    assert MARK not in logged()


def test_a_handler_that_cannot_reach_another_database(postgresql_bench: Bench, logged: Callable[[], str], settings: Any) -> None:
    bench = postgresql_bench
    settings.SECRET_KEY = SIGNING
    bench.database.configure(**SETTINGS)
    other = {"host": "127.0.0.1", "port": free_port(), "password": PASSWORD, "dbname": "x", "user": "shop"}

    @handles("Test.Message")
    def handle(message: Any, context: Any) -> None:
        import psycopg

        secret = django_settings.SECRET_KEY
        assert secret
        psycopg.connect(f"postgresql://shop:{PASSWORD}@127.0.0.1:{other['port']}/x")

    bench.put_message("Test.Message", {})
    bench.run()
    (failed,) = bench.headers("error")
    assert "connection" in failed["NServiceBus.ExceptionInfo.Message"]
    assert MARK not in json.dumps(failed)
    # The traceback shows the source line of the handler, which has the name of the variable, not its value.
    assert MARK not in logged()


def wrong_settings() -> Iterator[dict[str, Any]]:
    yield {"METRICS": [("TOKEN", TOKEN)]}
    yield {"METRICS": {"TOKEN": [TOKEN]}}
    yield {"METRICS": {"TOKEN": f"{TOKEN} "}}
    yield {"METRICS": {"TOKENS": TOKEN}}
    yield {"METRICS": {"TOKEN": TOKEN, "NETWORKS": {"TOKEN": TOKEN}}}
    yield {"PIPELINE": {"SPARK": list(SPARK.items())}}
    yield {"PIPELINE": {"SPARK": {name: value.encode() for name, value in SPARK.items()}}}
    yield {"PIPELINE": {"SPARK": {name: [value] for name, value in SPARK.items()}}}
    yield {"PIPELINE": {"SPARKS": SPARK}}
    yield {"PIPELINE": [("SPARK", SPARK)]}
    yield {"PIPELINE": {"LAKE": f"s3a://id:{KEY}@lake/x"}}
    yield {"ENDPOINTS": {"Sales": SPARK}}


@pytest.mark.parametrize("wrong", list(wrong_settings()), ids=str)
def test_wrong_settings(sqlite_database: QueueDatabase, logged: Callable[[], str], wrong: dict[str, Any]) -> None:
    sqlite_database.configure(**{**SETTINGS, **wrong})
    found = checks.run_checks(tags=["sqlqueue"])
    assert [each for each in found if each.level >= checks.ERROR]
    text = "\n".join([*map(str, found), *map(repr, found), output_of("sqlqueue_status"), output_of("check")])
    assert MARK not in text.replace(f'"TOKEN", "{MARK}"', "")
    assert MARK not in logged()


def test_settings_that_are_no_dictionary(settings: Any) -> None:
    settings.SQLQUEUE = list(SETTINGS.items())
    assert MARK not in "".join(map(str, checks.run_checks(tags=["sqlqueue"])))


def test_settings_and_options_as_text(sqlite_database: QueueDatabase) -> None:
    pytest.importorskip("pyspark")
    from sqlqueue_app.pipeline.run import options_of

    sqlite_database.configure(**SETTINGS)
    options = options_of(get_settings())
    assert MARK not in repr(get_settings()) + repr(options) + repr(options.shown())
    output = output_of("run_sqlqueue_pipeline", "--lake", f"s3a://id:{KEY}@lake/x")
    assert "spark" in output
    assert MARK not in output.replace("call_command", "")


def test_pages_answers_and_exports(
    sqlite_database: QueueDatabase, logged: Callable[[], str], tmp_path: Path, settings: Any
) -> None:
    settings.SECRET_KEY = SIGNING
    settings.DEBUG = True
    sqlite_database.configure(**SETTINGS)
    Bench(sqlite_database).install()
    rule = NotificationRule.objects.create(
        pk=1, name="long", kind="queue_longer", threshold=5, channel="webhook", target=f"https://example.com/{PATH}",
        secret=WEBHOOK, changed_at=datetime.now(UTC),
    )  # fmt: skip
    delivery: NotificationDelivery = new_delivery(rule, {}, datetime.now(UTC))
    delivery.state = "failed"
    delivery.save(force_insert=True)
    for kind, hidden, pages in (("superuser", [MARK], ""), ("writer", [MARK, PATH], RULES), ("viewer", [MARK, PATH], RULES)):
        browser = client_of(kind)
        for name, path in site_paths().items():
            for query in ("", "?format=json") if name.startswith(RULES) else ("",):
                text = browser.get(path + query).getvalue().decode() if name.startswith(pages) else ""
                assert [each for each in hidden if each in text] == [], (kind, name, query)
    for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Bearer {TOKEN}"}):
        assert MARK not in Client().get("/sqlqueue/metrics", headers=header).text
    assert MARK not in logged()
