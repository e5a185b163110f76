"""The results as one readable table and as JSON for later comparison."""

from __future__ import annotations

import os
import platform
import sqlite3
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import django
import psycopg

import sqlqueue_app
from benchmarks.goals import Verdict
from benchmarks.series import Section, Series


def markdown(sections: Sequence[Section], verdicts: Sequence[Verdict], facts: dict[str, Any]) -> str:
    """The machine, the table, the missing measurements, and the goals."""
    facts_lines = [f"- {name}: {_value(value)}" for name, value in facts.items()]
    lines = ["# Benchmark", "", *facts_lines, "", *grid(sections), "", *_notes(sections), "## Goals", ""]
    rows = [["goal", "measured", "met"], *([each.goal, each.measured, each.word] for each in verdicts)]
    return "\n".join([*lines, *aligned(rows), ""])


def grid(sections: Sequence[Section]) -> list[str]:
    """A row for each series, a column for each database: median (lowest–highest), µs of the client's processor."""
    databases = list(dict.fromkeys(section.database for section in sections))
    rows = [["median (range of rounds) · µs of the client's processor a message", *databases]]
    for part, title in dict.fromkeys((section.part, section.title) for section in sections):
        found = {section.database: section for section in sections if section.part == part and section.title == title}
        rows.append([f"**{title}**", *("" for _ in databases)])
        named = {each.key: each for section in reversed(found.values()) for each in section.series}
        keys = dict.fromkeys(each.key for section in found.values() for each in section.series)
        for each in (named[key] for key in keys):
            cells = [_cell(found.get(database), each.key) for database in databases]
            rows.append([f"{each.name}, {each.unit}", *cells])
    return aligned(rows)


def _cell(section: Section | None, key: str) -> str:
    series = next((each for each in section.series if each.key == key), None) if section else None
    if series is None:
        return ""
    return describe(series) if series.values else "n/a"


def describe(series: Series) -> str:
    """Median and range, with the client's processor time if known."""
    text = _number(series.median)
    if len(series.values) > 1:
        text += f" ({_number(min(series.values))}–{_number(max(series.values))})"
    if series.processor_microseconds:
        used = sorted(series.processor_microseconds)[len(series.processor_microseconds) // 2]
        text += f" · {used:.0f}"
    return text


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}"


def _value(value: object) -> str:
    return ", ".join(f"{each:.2f}" for each in value) if isinstance(value, tuple) else str(value)


def _notes(sections: Sequence[Section]) -> list[str]:
    found = {f"- {each.name}: {each.note}" for section in sections for each in section.series if each.note}
    for section in sections:
        values = ", ".join(f"{name} {value}" for name, value in section.facts.items() if isinstance(value, int | float | str))
        found.add(f"- {section.part}, {section.database}: {values}")
    return [*sorted(found), ""]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """A table in Markdown, its first row the heading."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    rule = ["-" * width for width in widths]
    return [f"| {' | '.join(row)} |" for row in [padded[0], rule, *padded[1:]]]


def as_json(sections: Sequence[Section], verdicts: Sequence[Verdict], facts: dict[str, Any]) -> dict[str, Any]:
    """All data needed to interpret the numbers later."""
    return {
        "machine": facts,
        "goals": [asdict(each) for each in verdicts],
        "sections": [asdict(section) for section in sections],
    }


def machine() -> dict[str, Any]:
    """The machine of the measurement and its present load."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory": _memory(),
        "load before": os.getloadavg(),
        "python": sys.version.split()[0],
        "django": django.get_version(),
        "psycopg": f"{psycopg.__version__} ({psycopg.pq.__impl__}, libpq {psycopg.pq.version_pretty(psycopg.pq.version())})",
        "sqlite": sqlite3.sqlite_version,
        "sqlqueue": sqlqueue_app.__version__,
    }


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _memory() -> str:
    return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB"
