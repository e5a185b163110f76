"""The text format of Prometheus, version 0.0.4."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from sqlqueue_app.operations.metrics import Family, Labels

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def exposition(families: Iterable[Family]) -> str:
    """All families, each with HELP and TYPE."""
    return "".join(f"{line}\n" for each in families for line in _lines(each))


def _lines(family: Family) -> Iterator[str]:
    yield f"# HELP {family.name} {_escaped(family.help)}"
    yield f"# TYPE {family.name} {family.kind}"
    for labels, value in family.samples:
        yield f"{family.name}{_labels(labels)} {_number(value)}"


def _labels(labels: Labels) -> str:
    quoted = (f'{name}="{_escaped(value).replace(chr(34), chr(92) + chr(34))}"' for name, value in labels.items())
    return "{" + ",".join(quoted) + "}" if labels else ""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    if isinstance(value, int) or (math.isfinite(value) and value == int(value)):
        return str(int(value))
    return repr(float(value))
