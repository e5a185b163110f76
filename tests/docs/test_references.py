"""The reference pages match the code: log events, public names, errors, tables."""

from __future__ import annotations

import re
from typing import get_args

from django.apps import apps

import sqlqueue_app
from sqlqueue_app import messages
from sqlqueue_app.conf.settings import ConcurrencyModel, TransactionMode
from sqlqueue_app.lake.columns import TABLES
from sqlqueue_app.messages import errors
from sqlqueue_app.models import (
    CheckResult,
    ConversationEdge,
    EndpointSample,
    EndpointSeen,
    EndpointTotal,
    Event,
    FailedAttempt,
    FailedMessage,
    FailureGroup,
    GroupFigures,
    Instance,
    LakeBatch,
    LakeCopy,
    LakeFile,
    LakePosition,
    MessageFigures,
    NotableMessage,
    NotificationDelivery,
    NotificationRule,
    Operation,
    OperatorAction,
    PipelineRun,
    QueueFigures,
    QueueSample,
    Redirect,
    UsageDay,
)
from sqlqueue_app.policies import polling
from sqlqueue_app.policies.polling import BackOff
from sqlqueue_app.status.samples import RESOLUTIONS
from sqlqueue_app.worker.logs import FIELDS
from tests.support.databases import ROOT

OWN_TABLES = [
    Instance,
    QueueSample,
    EndpointSample,
    EndpointTotal,
    FailedMessage,
    FailedAttempt,
    FailureGroup,
    Redirect,
    Operation,
    OperatorAction,
    Event,
    CheckResult,
    NotificationRule,
    NotificationDelivery,
    PipelineRun,
    LakeBatch,
    LakeFile,
    LakePosition,
    LakeCopy,
    MessageFigures,
    GroupFigures,
    ConversationEdge,
    EndpointSeen,
    QueueFigures,
    NotableMessage,
    UsageDay,
]
REFERENCE = ROOT / "docs" / "reference"
FIELD = re.compile(r"log_extra\(\"\w+\", [^=\n]*?(?:(\w+)=[^=\n]*?)(?:, (\w+)=[^=\n]*)?\)\n")
EVENT = re.compile(r"(?:\"event\": |_extra\()\"(\w+)\"")


def first_cells(page: str, heading: str) -> list[str]:
    """The first column of the table below a heading, without back-ticks."""
    (section,) = [part for part in page.split("\n## ") if part.startswith(f"{heading}\n")]
    return re.findall(r"^\| `([^`]+)`", section, re.MULTILINE)


def test_log_events_match_the_code() -> None:
    code = {event for path in (ROOT / "sqlqueue_app").rglob("*.py") for event in EVENT.findall(path.read_text("utf-8"))}

    documented = first_cells((REFERENCE / "logging.md").read_text("utf-8"), "Events")

    assert sorted(documented) == sorted(code)


def test_log_fields_match_the_code() -> None:
    assert first_cells((REFERENCE / "logging.md").read_text("utf-8"), "Fields") == list(FIELDS)


def test_fields_of_a_message_are_logged() -> None:
    code = {
        name for path in (ROOT / "sqlqueue_app").rglob("*.py") for found in FIELD.findall(path.read_text("utf-8")) for name in found
    }

    assert {"attempt", "delay_seconds"} < code - {""} <= set(FIELDS)


def test_public_names_match_the_package() -> None:
    page = (REFERENCE / "python.md").read_text("utf-8")

    assert sorted(first_cells(page, "`sqlqueue_app`")) == sorted(sqlqueue_app.__all__)
    assert sorted(first_cells(page, "`sqlqueue_app.messages`")) == sorted(messages.__all__)


def test_pages_import_public_names_only() -> None:
    public = (REFERENCE / "python.md").read_text("utf-8")
    imports = re.compile(r"from (sqlqueue_app\.[\w.]+) import ([\w, ]+)")
    found = {
        (module, name.strip())
        for page in (ROOT / "docs").rglob("*.md")
        for module, names in imports.findall(page.read_text("utf-8"))
        for name in names.split(",")
    }
    assert {each for each in found if not all(f"`{part}" in public for part in each)} == set()


def test_errors_match_the_code() -> None:
    page = (REFERENCE / "python.md").read_text("utf-8")
    classes = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}

    assert set(first_cells(page, "Errors")) == classes


def test_rates_of_the_readme_are_those_of_the_measurements() -> None:
    (claim,) = re.findall(
        r"\*\*Fast without a broker\.\*\*.*?docs/explanation/peers\.md", (ROOT / "README.md").read_text("utf-8"), re.DOTALL
    )
    table = (ROOT / "docs" / "explanation" / "peers.md").read_text("utf-8")

    rates = re.findall(r"\d+,\d{3}", claim)

    assert len(rates) == 4
    assert [rate for rate in rates if f"| {rate} (" not in table] == []


def test_numbers_of_the_adaptive_model_match_the_code() -> None:
    page = (ROOT / "docs" / "explanation" / "concurrency.md").read_text("utf-8")
    tick = polling.SLOW_TASK_TICK_SECONDS

    assert f"more than {polling.RAMP_UP_ABOVE_SUCCESSES} messages in a row" in page
    assert f"{polling.END_AT_FAILURES} polls in a row were empty" in page
    assert (
        f"waits {BackOff().first_seconds:g} seconds, then twice as long each time, up to {BackOff().cap_seconds:g} second" in page
    )
    assert f"for {tick:g} to {polling.SLOW_TASK_TICKS * tick:g} seconds" in page


def test_concurrency_models_match_the_settings() -> None:
    page = (ROOT / "docs" / "explanation" / "concurrency.md").read_text("utf-8")

    assert set(re.findall(r"^### `(\w+)`", page, re.MULTILINE)) == set(get_args(ConcurrencyModel))


def test_transaction_modes_match_the_settings() -> None:
    page = (ROOT / "docs" / "explanation" / "transactions.md").read_text("utf-8")

    assert first_cells(page, "Modes") == list(get_args(TransactionMode))


def test_columns_of_own_tables_match_the_models() -> None:
    page = (REFERENCE / "own-tables.md").read_text("utf-8")
    for model in OWN_TABLES:
        (section,) = [part for part in page.split("\n## ") if part.startswith(f"`{model.__name__}`\n")]
        cells = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", section, re.MULTILINE)
        documented = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)} - {"seconds"}
        assert documented == {field.name for field in model._meta.fields} - {"id", "seconds"}


def test_number_of_own_tables_matches_the_models() -> None:
    page = (REFERENCE / "own-tables.md").read_text("utf-8")
    managed = [model for model in apps.get_app_config("sqlqueue_app").get_models() if model._meta.managed]

    assert f"`migrate` creates {len(managed)} tables" in page


def test_lake_tables_match_the_code() -> None:
    page = (REFERENCE / "lake.md").read_text("utf-8")
    sections = {part.split("`")[1]: part for part in page.split("\n### ")[1:]}

    assert sorted(sections) == sorted(TABLES)
    for name, table in TABLES.items():
        cells = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", sections[name].split("\n## ")[0], re.MULTILINE)
        documented = [column for cell in cells for column in re.findall(r"`(\w+)`", cell)]
        shared = TABLES["messages"].names if name == "failures" else ()
        assert sorted(documented) == sorted(set(table.names) - set(shared)), name


def test_retention_of_samples_matches_the_code() -> None:
    page = (REFERENCE / "own-tables.md").read_text("utf-8")
    hours = {"1 hour": 1, "1 day": 24, "30 days": 720, "365 days": 8760}
    kept = [(int(seconds), hours[time] * 3600) for seconds, time in re.findall(r"^\| (\d+) \| (.+?) \|$", page, re.MULTILINE)]

    assert kept == [(each.seconds, each.kept.total_seconds()) for each in RESOLUTIONS]
    assert f"at most {sum(time // seconds for seconds, time in kept):,} samples" in page
