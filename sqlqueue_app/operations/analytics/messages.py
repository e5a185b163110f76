"""Figures of messages over time, and by endpoint and type: sums by the database, quantiles by merging sketches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import QuerySet, Sum

from sqlqueue_app.instances import managed_alias
from sqlqueue_app.lake.sketches import Sketch, from_json, merged, quantile
from sqlqueue_app.models import MessageFigures
from sqlqueue_app.operations.analytics.asking import DAY, HOUR, FiguresAsked

# So many sketches are merged for a page: a few tenths of a second. Of more than that longer steps are taken, which are fewer.
MOST_SKETCHES: Final = 10_000
MOST_KINDS: Final = 200
_SUMS: Final = (
    "processed", "failed", "retried", "delayed_retries", "processing_count", "processing_sum", "critical_count", "critical_sum",
    "critical_negative", "body_bytes",
)  # fmt: skip


@dataclass(slots=True)
class Figures:
    """Sums of messages; times in seconds. A mean weighs each message the same; a quantile of none is None."""

    processed: int = 0
    failed: int = 0
    retried: int = 0
    delayed_retries: int = 0
    processing_count: int = 0
    processing_sum: float = 0.0
    critical_count: int = 0
    critical_sum: float = 0.0
    critical_negative: int = 0
    body_bytes: int = 0
    processing: Sketch = field(default_factory=dict)
    critical: Sketch = field(default_factory=dict)

    @property
    def failure_rate(self) -> float | None:
        """The part of all that failed, of what was processed and what came to an error queue."""
        whole = self.processed + self.failed
        return self.failed / whole if whole else None

    @property
    def processing_mean(self) -> float | None:
        """Of those with a processing time."""
        return self.processing_sum / self.processing_count if self.processing_count else None

    @property
    def critical_mean(self) -> float | None:
        """Of those with a critical time."""
        return self.critical_sum / self.critical_count if self.critical_count else None

    def critical_of(self, fraction: float) -> float | None:
        """A quantile of the critical time."""
        return quantile(self.critical, fraction)

    def processing_of(self, fraction: float) -> float | None:
        """A quantile of the processing time."""
        return quantile(self.processing, fraction)

    def add(self, values: dict[str, Any]) -> None:
        """Sums of a row of the database."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + (values[name] or 0))

    def add_sketches(self, processing: Any, critical: Any) -> None:
        """Sketches as they stand in the database."""
        for into, more in ((self.processing, processing), (self.critical, critical)):
            for bucket, count in from_json(more).items():
                into[bucket] = into.get(bucket, 0) + count

    def plus(self, other: Figures) -> None:
        """Those of another time or kind of message; they stay as they are."""
        self.add({name: getattr(other, name) for name in _SUMS})
        self.processing = merged(self.processing, other.processing)
        self.critical = merged(self.critical, other.critical)


def in_steps_of(found: Mapping[datetime, Figures], begin: datetime, step: timedelta) -> dict[datetime, Figures]:
    """Figures over time put together in longer steps, counted from `begin` on."""
    wide: defaultdict[datetime, Figures] = defaultdict(Figures)
    for at, each in found.items():
        wide[begin + (at - begin) // step * step].plus(each)
    return dict(wide)


@dataclass(frozen=True, slots=True)
class FiguresRead:
    """Figures over time in the steps asked for, by endpoint and type (the busiest ones), and of all.

    Quantiles over time are in `quantiles`, in steps of `quantile_seconds`; None: there are too many figures to merge.
    """

    asked: FiguresAsked
    over_time: dict[datetime, Figures]
    quantiles: dict[datetime, Figures]
    quantile_seconds: int | None
    by_kind: dict[tuple[str, str], Figures]
    total: Figures
    is_cut: bool


def read_figures(asked: FiguresAsked) -> FiguresRead:
    """The figures; at most six statements. Raises DatabaseErrors."""
    rows = _rows(asked)
    over_time: dict[datetime, Figures] = {}
    for values in rows.values("at").annotate(**{f"sum_{name}": Sum(name) for name in _SUMS}).order_by("at"):
        over_time[values["at"]] = _summed(values)
    total = Figures()
    for each in over_time.values():
        total.plus(each)
    sums = {f"sum_{name}": Sum(name) for name in _SUMS}
    kinds = rows.values("endpoint", "message_type").annotate(**sums).order_by("-sum_processed", "endpoint", "message_type")
    found = list(kinds[: MOST_KINDS + 1])
    by_kind = {(values["endpoint"], values["message_type"]): _summed(values) for values in found[:MOST_KINDS]}
    quantiles, seconds = _quantiles(asked, by_kind, total)
    return FiguresRead(asked, over_time, quantiles, seconds, by_kind, total, len(found) > MOST_KINDS)


def _rows(asked: FiguresAsked) -> QuerySet[MessageFigures]:
    return MessageFigures.objects.using(managed_alias()).filter(asked.in_time, asked.of_messages)


def _summed(values: dict[str, Any]) -> Figures:
    found = Figures()
    found.add({name: values[f"sum_{name}"] for name in _SUMS})
    return found


def _quantiles(
    asked: FiguresAsked, by_kind: dict[tuple[str, str], Figures], total: Figures
) -> tuple[dict[datetime, Figures], int | None]:
    for seconds in sorted({asked.seconds, HOUR, DAY}):
        if seconds < asked.seconds:
            continue
        rows = _rows(asked.in_steps_of(seconds))
        if rows.values("pk")[: MOST_SKETCHES + 1].count() > MOST_SKETCHES:
            continue
        found: defaultdict[datetime, Figures] = defaultdict(Figures)
        for at, endpoint, kind, processing, critical in rows.values_list(
            "at", "endpoint", "message_type", "processing_sketch", "critical_sketch"
        ):
            for each in (found[at] if at else None, total, by_kind.get((endpoint, kind))):
                if each is not None:
                    each.add_sketches(processing, critical)
        return dict(sorted(found.items())), seconds
    return {}, None


def exported_figures(asked: FiguresAsked) -> Iterator[MessageFigures]:
    """Every row, the oldest first, while others are written."""
    return _rows(asked).order_by("at", "endpoint", "message_type").iterator(chunk_size=1_000)
