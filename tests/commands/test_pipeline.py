"""`run_sqlqueue_pipeline` refuses wrong options with one line before it starts Spark."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from sqlqueue_app.management.commands import run_sqlqueue_pipeline
from sqlqueue_app.models import PipelineRun
from tests.support.databases import QueueDatabase
from tests.support.filling import install, message, table
from tests.support.spark import has_spark

needs_spark = pytest.mark.skipif(not has_spark(), reason="the extra spark is not installed")


def refused(*arguments: str) -> tuple[str, int]:
    with pytest.raises(CommandError) as caught:
        call_command("run_sqlqueue_pipeline", *arguments, stdout=io.StringIO())
    return str(caught.value), caught.value.returncode


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--batch-size", "0"], "Error: argument --batch-size: expected at least 1 and at most 2147483647, got 0"),
        (["--keep-days", "x"], "Error: argument --keep-days: expected a whole number, got 'x'"),
        (["--once", "--continuous"], "Error: argument --continuous: not allowed with argument --once"),
        (["--lake", "  "], "Error: argument --lake: expected a folder or a URL, got '  '"),
        (["--master", ""], "Error: argument --master: expected the URL of a Spark master, got ''"),
        (["--format", "xml"], "Error: argument --format: invalid choice: 'xml' (choose from 'text', 'json')"),
    ],
)
def test_a_bad_argument_is_one_line(sqlite_database: QueueDatabase, arguments: list[str], expected: str) -> None:
    del sqlite_database
    assert refused(*arguments) == (expected, 2)


@needs_spark
def test_missing_lake_is_reported_with_the_setting(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)

    assert refused() == (
        'no lake is configured: pass --lake PATH, or set SQLQUEUE["PIPELINE"]["LAKE"] to a folder or a URL',
        2,
    )


@needs_spark
@pytest.mark.parametrize(("queue", "kind"), [("sales", "main"), ("error", "error"), ("old errors", "error")])
def test_only_audit_queues_are_taken(sqlite_database: QueueDatabase, tmp_path: Path, queue: str, kind: str) -> None:
    pipeline = {"LAKE": str(tmp_path / "lake"), "AUDIT_QUEUES": ["audit", queue], "ERROR_QUEUES": ["error", "old errors"]}
    install(sqlite_database, PIPELINE=pipeline)
    table(sqlite_database, "Sales").send([message()])

    assert refused() == (
        f'SQLQUEUE["PIPELINE"]["AUDIT_QUEUES"] names {queue!r}, which is a queue of the kind {kind}: the pipeline would remove its '
        "messages; name audit queues only, or copy with PEEK_ONLY",
        2,
    )
    assert table(sqlite_database, "Sales").depth().waiting == 1
    assert not (tmp_path / "lake").exists()


def test_missing_extra_is_reported_with_its_name(sqlite_database: QueueDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    install(sqlite_database)

    monkeypatch.setattr(run_sqlqueue_pipeline, "find_spec", lambda name: None if name == "pyspark" else object())
    assert refused("--lake", "/srv/lake") == ("not installed: pyspark; run pip install 'django-sqlqueue[spark]'", 2)


@needs_spark
def test_a_lake_of_a_newer_version_is_refused(sqlite_database: QueueDatabase, tmp_path: Path) -> None:
    install(sqlite_database)
    text = '{"format": 99, "id": "11111111-2222-3333-4444-555555555555", "written_by": "7.0"}'
    (tmp_path / "_sqlqueue.json").write_text(text)

    expected, code = refused("--lake", str(tmp_path))

    assert expected.startswith(f"the lake {tmp_path} cannot be used: it has the format 99, written by sqlqueue 7.0")
    assert code == 1
    assert not PipelineRun.objects.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["_sqlqueue.json"]
