"""The tables of docs/reference/settings.md: `python -m docs.settings_tables` updates them from the code.

Keys, types and defaults come from the dataclasses of `sqlqueue_app.conf`, in their order. The meaning of a key and the version that
introduced it are written by hand and kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING
from pathlib import Path
from typing import Any

from sqlqueue_app import conf
from sqlqueue_app.conf.kinds import MAX_INTEGER
from sqlqueue_app.conf.task_backends import TaskOptions
from sqlqueue_app.conf.validation import keys_of

PAGE = Path(__file__).resolve().parent / "reference" / "settings.md"
SECTIONS: dict[str, type[Any]] = {
    "`SQLQUEUE`": conf.Settings,
    '`SQLQUEUE["ENDPOINTS"][name]`': conf.EndpointSettings,
    '`SQLQUEUE["ENDPOINTS"][name]["SATELLITES"][queue]`': conf.SatelliteSettings,
    '`SQLQUEUE["ENDPOINTS"][name]["CUSTOM_CHECKS"][check]`': conf.CustomCheckSettings,
    '`SQLQUEUE["SCHEDULES"][name]`': conf.ScheduleSettings,
    '`SQLQUEUE["METRICS"]`': conf.MetricsSettings,
    '`SQLQUEUE["CLAIM_CHECK"]`': conf.ClaimCheckSettings,
    '`SQLQUEUE["PIPELINE"]`': conf.PipelineSettings,
    '`TASKS[alias]["OPTIONS"]`': TaskOptions,
}
_ROW = re.compile(r"^\| `.*\n", re.MULTILINE)
# The page names it once, above the tables.
_USUAL_MAXIMUM = f" and at most {MAX_INTEGER}"


def updated(page: str) -> str:
    """The text of the page with the rows of all tables as the code declares them. Raises ValueError for a missing heading."""
    parts = re.split(r"^## ", page, flags=re.MULTILINE)
    for heading, section in SECTIONS.items():
        places = [number for number, part in enumerate(parts) if part.startswith(f"{heading}\n")]
        if len(places) != 1:
            raise ValueError(f"{PAGE.name} has {len(places)} headings {heading!r}, expected one: add it with an empty table")
        parts[places[0]] = _with_rows(parts[places[0]], section)
    return "## ".join(parts)


def _with_rows(part: str, section: type[Any]) -> str:
    kept = {key: rest for key, *_, rest in (row.strip("|\n").split(" | ", 3) for row in _ROW.findall(part))}
    rows = "".join(
        f"| `{key}` | {_type(setting.expected)} | {_default(setting.default)} | {kept.get(f' `{key}`', '|').strip()} |\n"
        for key, setting in keys_of(section).items()
    )
    first = _ROW.search(part)
    begin = first.start() if first else part.index("|---|\n") + len("|---|\n")
    return part[:begin] + rows + _ROW.sub("", part[begin:])


def _type(expected: str) -> str:
    return expected.replace(_USUAL_MAXIMUM, "")


def _default(value: object) -> str:
    if value is MISSING:
        return "required"
    if isinstance(value, str):
        return f'`"{value}"`'
    if isinstance(value, float) and value.is_integer():
        return f"`{value:.0f}`"
    if isinstance(value, Mapping | tuple):
        return f"`{dict(value) if isinstance(value, Mapping) else list(value)}`"
    return f"`{value}`"


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text("utf-8")), "utf-8")
