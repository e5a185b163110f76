"""Mistakes of the first day: each has a message that names its cause (docs: What happens when …)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from sqlqueue_app import handles
from tests.support.bench import Bench, Calls


def refusal(code: int = 2, **options: Any) -> str:
    """Return the one line with which a worker ends."""
    with pytest.raises(CommandError) as caught:
        call_command("run_sqlqueue_worker", until_empty=True, **options)
    assert (caught.value.returncode, str(caught.value).count("\n")) == (code, 0)
    return str(caught.value)


def test_endpoint_without_handlers_logs_a_warning_with_the_remedy(
    bench: Bench, events: Callable[[], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    bench.configure(HANDLERS=[])
    bench.put_message("Test.Message")
    bench.run()
    assert (
        "endpoint Sales has no handler: every message will go to the error queue; "
        "write handlers into handlers.py of an installed app, or name their modules in HANDLERS"
    ) in caplog.text
    assert events().count("no_handlers") == 1
    (headers,) = bench.headers("error")
    assert headers["NServiceBus.ExceptionInfo.Message"].endswith("its types are 'Test.Message'; this endpoint handles nothing")


def test_hard_limit_without_a_supervisor_logs_a_warning(bench: Bench, events: Callable[[], list[str]]) -> None:
    handles("Test.Message", hard_time_limit=60)(lambda message, context: None)
    bench.configure()
    bench.run()
    assert events().count("hard_limits_off") == 1
    bench.configure(HANDLERS=[])
    bench.run()
    assert events().count("hard_limits_off") == 1


def test_message_without_handler_names_the_existing_ones(bench: Bench, counting: object) -> None:
    bench.put_message("Test.Massage")
    bench.run()
    (headers,) = bench.headers("error")
    assert headers["NServiceBus.ExceptionInfo.Message"].endswith("its types are 'Test.Massage'; this endpoint handles Test.Message")


def test_missing_handler_module_is_named(bench: Bench) -> None:
    bench.configure(HANDLERS=["shop.hanlders"])
    expected = "HANDLERS names the module 'shop.hanlders', which does not exist: write the dotted path of a Python module"
    assert refusal() == expected


def test_psycopg_2_ends_the_worker_before_it_receives(postgresql_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    postgresql_bench.configure()
    monkeypatch.setattr("django.db.backends.postgresql.psycopg_any.is_psycopg3", False)
    assert refusal().startswith("psycopg 2 is installed, but receiving from PostgreSQL needs psycopg 3")


@pytest.mark.parametrize(
    ("code", "error", "expected"),
    [
        ("import no_such_package", ModuleNotFoundError, "No module named 'no_such_package'"),
        ("def handler(message, context) pass", SyntaxError, "expected ':'"),
    ],
)
def test_error_in_a_handler_module_keeps_its_traceback(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, error: type[Exception], expected: str
) -> None:
    (tmp_path / "first_mistakes.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    bench.configure(HANDLERS=["first_mistakes"])
    try:
        with pytest.raises(error, match=expected) as caught:
            call_command("run_sqlqueue_worker", until_empty=True)
    finally:
        sys.modules.pop("first_mistakes", None)
    last = getattr(caught.value, "filename", None) or caught.traceback[-1].path
    assert Path(last).name == "first_mistakes.py"


@pytest.mark.parametrize(
    ("wrong", "options", "expected"),
    [
        ({"ENDPOINTS": {}}, {}, 'no endpoint to run: SQLQUEUE["ENDPOINTS"] is empty; add one, such as "ENDPOINTS": {"Sales": {}}'),
        ({}, {"endpoint": ["Slaes"]}, "endpoint 'Slaes' is not in SQLQUEUE[\"ENDPOINTS\"]: did you mean 'Sales'?"),
        ({"ENDPONTS": {}}, {}, "SQLQUEUE[\"ENDPONTS\"] is not a setting: did you mean 'ENDPOINTS'?"),
        ({"ENDPOINTS": {"Sales": {"PEEK_DELAY": "1s"}}}, {}, "[\"PEEK_DELAY\"] is '1s', expected seconds (int, float or"),
        ({"ENDPOINTS": {"Sales": {"MAX_CONCURRENCY": 0}}}, {}, '["MAX_CONCURRENCY"] is 0, expected an integer of at least 1'),
        (
            {"ENDPOINTS": {"Sales": {"BATCH_SIZE": 2**63}}},
            {},
            "is 9223372036854775808, expected an integer of at least 1 and at most",
        ),
        (
            {"DATABASE": "defualt"},
            {},
            "SQLQUEUE[\"DATABASE\"] is 'defualt', expected an alias of DATABASES: did you mean 'default'?",
        ),
        (
            {"SCHEDULES": {"x": {"SEND": "A", "CRON": "61 * * * *"}}},
            {},
            "is '61 * * * *', expected 0 to 59 for the minute, not '61'",
        ),
    ],
)
def test_wrong_setting_or_argument_ends_the_worker_with_one_line(
    bench: Bench, wrong: dict[str, Any], options: dict[str, Any], expected: str
) -> None:
    bench.database.configure(**wrong)
    assert expected in refusal(**options)


def test_debug_mode_uses_no_extra_memory(bench: Bench, calls: Calls) -> None:
    """Django keeps the text of each statement while DEBUG is True; a worker clears the list after each message."""
    bench.configure(MAX_CONCURRENCY=1, CONCURRENCY_MODEL="fixed")
    bench.database.settings.DEBUG = True

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        with context.connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        calls.add(len(context.connection.queries))

    for number in range(20):
        bench.put_message_of(number, "Test.Message")
    bench.run()
    assert len(calls.seen) == 20
    assert 0 < max(calls.seen) < 20
