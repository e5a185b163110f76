"""`run_sqlqueue_worker` for a new user, and with the rights of a service account."""

from __future__ import annotations

import pytest

from sqlqueue_app import send
from tests.support.bench import Bench
from tests.support.worker_processes import address, handled, prepare, worker_command, worker_process


def test_help_describes_signals_and_exit_codes(bench: Bench) -> None:
    result = worker_command(bench, "--help")
    assert result.returncode == 0
    for expected in (
        "--endpoint",
        "--max-concurrency",
        "--until-empty",
        "--install",
        "--log-format",
        "signals:",
        "exit codes:",
        "examples:",
    ):
        assert expected in result.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--endpoint", "Sale"], "endpoint 'Sale' is not in SQLQUEUE[\"ENDPOINTS\"]"),
        (["--max-concurrency", "0"], "expected at least 1 and at most 10000, got 0"),
        (["--model", "adaptve"], "invalid choice: 'adaptve'"),
        (["--max-concurrency", "many"], "expected a whole number, got 'many'"),
        (["--log-format", "xml"], "invalid choice: 'xml'"),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
    ],
)
def test_bad_argument_is_one_line_and_exit_code_2(bench: Bench, arguments: list[str], expected: str) -> None:
    result = worker_command(bench, *arguments)
    assert result.returncode == 2
    assert expected in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_wrong_settings_are_one_line_and_exit_code_2(bench: Bench) -> None:
    bench.database.configure(ENDPOINTS={"Sales": {"MAX_CONCURENCY": 1}})
    result = worker_command(bench)
    assert result.returncode == 2
    assert "MAX_CONCURRENCY" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_missing_table_is_exit_code_1(bench: Bench) -> None:
    bench.database.configure(ENDPOINTS={"Nowhere": {"CALLBACKS": False}})
    result = worker_command(bench)
    assert result.returncode == 1
    assert "run sqlqueue_install" in result.stderr.strip().splitlines()[-1]


def test_worker_needs_only_rights_to_read_and_write(postgresql_bench: Bench) -> None:
    bench = postgresql_bench
    prepare(bench, CALLBACKS=True, INSTANCE="here", CALLBACK_QUEUES=1, IMMEDIATE_RETRIES=1)
    send("Worker.Count", {"number": 1}, to=address(bench, "Sales"))
    send("Worker.Unknown", {}, to=address(bench, "Sales"))
    role = bench.database.create_role("service")
    with bench.database.connection.cursor() as cursor:
        cursor.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        cursor.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}")
        cursor.execute(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {role}")
    with bench.database.as_role(role), worker_process(bench, "--until-empty") as process:
        assert process.wait(60) == 0, process.communicate()
    assert [number for number, _ in handled(bench)] == [1]
    assert len(bench.rows("error")) == 1
