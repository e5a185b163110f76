"""docs/reference/settings.md says what the dataclasses say."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import MISSING
from pathlib import Path
from typing import Any

import pytest

import sqlqueue_app
from sqlqueue_app.conf import (
    CustomCheckSettings,
    EndpointSettings,
    MetricsSettings,
    PipelineSettings,
    SatelliteSettings,
    ScheduleSettings,
    Settings,
)
from sqlqueue_app.conf.task_backends import TaskOptions
from sqlqueue_app.conf.validation import Setting, keys_of

DOCUMENT = Path(sqlqueue_app.__file__).parent.parent / "docs" / "reference" / "settings.md"
HEADINGS: dict[str, type[Any]] = {
    "`SQLQUEUE`": Settings,
    '`SQLQUEUE["ENDPOINTS"][name]`': EndpointSettings,
    '`SQLQUEUE["ENDPOINTS"][name]["SATELLITES"][queue]`': SatelliteSettings,
    '`SQLQUEUE["ENDPOINTS"][name]["CUSTOM_CHECKS"][check]`': CustomCheckSettings,
    '`SQLQUEUE["SCHEDULES"][name]`': ScheduleSettings,
    '`SQLQUEUE["METRICS"]`': MetricsSettings,
    '`SQLQUEUE["PIPELINE"]`': PipelineSettings,
    '`TASKS[alias]["OPTIONS"]`': TaskOptions,
}


def rows(heading: str) -> list[list[str]]:
    (section,) = [part for part in DOCUMENT.read_text("utf-8").split("\n## ") if part.startswith(f"{heading}\n")]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def default_of(setting: Setting) -> object:
    value = setting.default
    if value is MISSING:
        return "required"
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


def documented_default(cell: str) -> object:
    return cell if cell == "required" else ast.literal_eval(cell.strip("`"))


@pytest.mark.parametrize("heading", HEADINGS)
def test_each_key_is_documented_with_type_and_default(heading: str) -> None:
    documented = [(key.strip("`"), kind, documented_default(default)) for key, kind, default, *_ in rows(heading)]

    keys = keys_of(HEADINGS[heading])
    assert documented == [(key, setting.expected, default_of(setting)) for key, setting in keys.items()]


@pytest.mark.parametrize("heading", HEADINGS)
def test_each_key_has_a_meaning_and_a_version(heading: str) -> None:
    for key, _, _, meaning, since in rows(heading):
        assert meaning.endswith("."), key
        assert re.fullmatch(r"\d+\.\d+", since), key
