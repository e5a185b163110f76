"""Options given on the command line, as text to `call_command`, or by name with Python values."""

from __future__ import annotations

import io
import json
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from sqlqueue_app.browsing.messages import read_details
from tests.support.databases import QueueDatabase
from tests.support.filling import install, table


def call(name: str, *arguments: str, **options: Any) -> str:
    out = io.StringIO()
    call_command(name, *arguments, stdout=out, **options)
    return out.getvalue()


def headers(database: QueueDatabase) -> list[dict[str, str | None]]:
    return [each.headers or {} for each in read_details(table(database, "Sales"), limit=10)]


@pytest.mark.parametrize(
    "arguments",
    [
        ["Sales", "--header", "a=1", "b=2", "--type", "T", "--body", "{}"],
        ["Sales", "--type", "T", "--body", "{}", "--header", "a=1", "--header=b=2"],
        ["--type", "T", "--body", "{}", "--header", "a=1", "b=2", "Sales"],
    ],
)
def test_several_headers_are_accepted_at_any_position(sqlite_database: QueueDatabase, arguments: list[str]) -> None:
    install(sqlite_database)
    call("sqlqueue_send", *arguments)

    (found,) = headers(sqlite_database)
    assert (found["a"], found["b"]) == ("1", "2")


def test_several_instances_are_accepted(sqlite_database: QueueDatabase) -> None:
    sqlite_database.configure(ENDPOINTS={"Sales": {"CALLBACK_QUEUES": 1}})

    made = json.loads(call("sqlqueue_install", "--instance", "web1", "web2", "--instance", "web3", "--format", "json"))

    callback_queues = {each["table"] for each in made["tables"] if "web" in each["table"]}
    assert callback_queues == {"Sales.web1", "Sales.web2", "Sales.web3"}


@pytest.mark.parametrize("header", [["a=1", "b=2"], ("a=1", "b=2"), [("a", "1"), ("b", "2")]])
def test_keyword_values_are_read_as_on_the_command_line(sqlite_database: QueueDatabase, header: Any) -> None:
    install(sqlite_database)
    call("sqlqueue_send", "Sales", type="T", body="{}", header=header, count="2", ttbr=60)
    call("sqlqueue_send", "Sales", type="T", body="{}", header=header, ttbr=timedelta(seconds=60))

    assert [(each["a"], each["b"]) for each in headers(sqlite_database)] == [("1", "2")] * 3
    assert all(each.summary.expires is not None for each in read_details(table(sqlite_database, "Sales"), limit=10))


def test_single_keyword_value_is_accepted_for_a_list(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    call("sqlqueue_send", "Sales", type="T", body="{}", header="a=1")
    call("run_sqlqueue_worker", endpoint="Sales", until_empty=True, max_concurrency=1, log_level="error")

    assert read_details(table(sqlite_database, "Sales"), limit=10) == []


@pytest.mark.parametrize(
    ("name", "option", "value", "expected"),
    [
        ("run_sqlqueue_worker", "max_concurrency", 0, "--max-concurrency: expected at least 1 and at most 10000, got 0"),
        ("run_sqlqueue_worker", "max_concurrency", 10_001, "--max-concurrency: expected at least 1 and at most 10000, got 10001"),
        ("run_sqlqueue_worker", "processes", 10_001, "--processes: expected at least 0 and at most 10000, got 10001"),
        ("run_sqlqueue_worker", "batch_size", 10**30, "--batch-size: expected at least 1 and at most 2147483647, got 10{30}$"),
        ("run_sqlqueue_worker", "max_memory_per_process", 2**63, "expected at least 1 and at most 9223372036854775807, got 9"),
        ("run_sqlqueue_worker", "model", "fast", "--model: invalid choice: 'fast'"),
        ("run_sqlqueue_worker", "batch_size", "many", "--batch-size: expected a whole number, got 'many'"),
        ("sqlqueue_purge_callbacks", "older_than", "long", "--older-than: expected a number of seconds, got 'long'"),
        ("sqlqueue_status", "format", "xml", "--format: invalid choice: 'xml'"),
    ],
)
def test_wrong_keyword_values_are_refused(
    sqlite_database: QueueDatabase, name: str, option: str, value: Any, expected: str
) -> None:
    with pytest.raises(CommandError, match=expected) as refused:
        call(name, **{option: value})
    assert refused.value.returncode == 2
