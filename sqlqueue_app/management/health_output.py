"""The output of `sqlqueue_health`: lines for people, a document for machines, the line of a monitoring plugin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlqueue_app.messages.printable import terminal_line
from sqlqueue_app.operations.health import Bounds, Health, HealthFinding, Level, Measure


def health_document(health: Health) -> dict[str, Any]:
    """The whole health; its keys are documented in docs/reference/commands.md and do not change."""
    return {
        "status": health.level.name.lower(),
        "exit_code": int(health.level),
        "taken_at": None if health.taken_at is None else health.taken_at.isoformat(),
        "findings": [
            {"status": each.level.name.lower(), "check": each.check, "subject": each.subject, "text": each.text}
            for each in health.findings
        ],
        "measures": [
            {
                "subject": each.subject,
                "name": each.name,
                "value": each.value,
                "unit": each.unit,
                "exact": each.exact,
                "warning": each.bounds.warning,
                "critical": each.bounds.critical,
            }
            for each in health.measures
        ],
    }


def health_lines(health: Health) -> Iterator[str]:
    """The level, then what is not well."""
    yield f"{health.level.name}: {_summary(health)}" if not health.findings else health.level.name
    for each in health.findings:
        yield terminal_line(f"{each.level.name.lower()}: {each.text}")


def nagios_line(health: Health) -> str:
    """One line as plugins of Nagios and Icinga print it: level, what is not well, and behind a bar the performance data."""
    said = "; ".join(each.text for each in health.findings) or _summary(health)
    text = " ".join(terminal_line(said).replace("|", "/").split())
    data = " ".join(_performance(each) for each in health.measures)
    return f"SQLQUEUE {health.level.name} - {text}" + (f" | {data}" if data else "")


def _summary(health: Health) -> str:
    queues = len({each.subject for each in health.measures if each.name == "length"})
    return f"{queues} {'queue is' if queues == 1 else 'queues are'} well"


def _performance(measure: Measure) -> str:
    """`'label'=value[unit];warning;critical;least`. A label has no equals sign, and its quotes are doubled."""
    label = " ".join(terminal_line(f"{measure.subject} {measure.name}").replace("=", "_").replace("|", "/").split())
    bounds = measure.bounds
    least = "" if measure.unit else "0"
    return (
        f"'{label.replace(chr(39), chr(39) * 2)}'={_number(measure.value)}{measure.unit};"
        f"{_range(bounds, bounds.warning)};{_range(bounds, bounds.critical)};{least}"
    )


def _range(bounds: Bounds, bound: float | None) -> str:
    if bound is None:
        return ""
    return f"{_number(bound)}:" if bounds.least else _number(bound)


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.3f}"


def unknown(text: str) -> Health:
    """The health of what could not be looked at."""
    return Health((HealthFinding(Level.UNKNOWN, "unknown", "", text),))
