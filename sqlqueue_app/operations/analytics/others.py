"""Figures besides those of messages: groups of failures, who sends to whom, usage, notable messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, Final
from uuid import UUID

from django.db.models import Max, Min, Q, Sum

from sqlqueue_app.instances import managed_alias
from sqlqueue_app.lake.sketches import Sketch, from_json, quantile
from sqlqueue_app.models import ConversationEdge, EndpointSeen, GroupFigures, NotableMessage, QueueFigures, UsageDay
from sqlqueue_app.operations.analytics.asking import DAY, HOUR, FiguresAsked
from sqlqueue_app.operations.analytics.messages import MOST_SKETCHES

MOST_GROUPS: Final = 50
MOST_EDGES: Final = 100
MOST_ROWS: Final = 200


@dataclass(frozen=True, slots=True)
class GroupRead:
    """A group of failures in a time: how many, the first and the last; `over_time` of those with the most alone."""

    id: UUID
    title: str
    count: int
    first_seen: datetime
    last_seen: datetime
    over_time: dict[datetime, int] = field(default_factory=dict)


def read_groups(asked: FiguresAsked, classifier: str, *, most: int = MOST_GROUPS, trends: int = 4) -> list[GroupRead]:
    """The groups of a classifier with the most failures; two statements. There are no figures of minutes: hours stand for them."""
    wanted = asked.in_steps_of(max(asked.seconds, HOUR))
    rows = GroupFigures.objects.using(managed_alias()).filter(wanted.in_time, classifier=classifier)
    # The newest text of a title would take a statement for each: all of them are the same to the id.
    sums = {"total": Sum("count"), "first": Min("first_seen"), "last": Max("last_seen"), "name": Max("title")}
    found = [
        GroupRead(each["group_id"], each["name"], each["total"], each["first"], each["last"])
        for each in rows.values("group_id").annotate(**sums).order_by("-total", "group_id")[:most]
    ]
    drawn = {each.id: each for each in found[:trends]}
    for group, at, count in rows.filter(group_id__in=list(drawn)).order_by("at").values_list("group_id", "at", "count"):
        if at is not None:
            drawn[group].over_time[at] = count
    return found


@dataclass(slots=True)
class Edge:
    """What one endpoint has sent to another: how often, by type, and how long it took until it was handled."""

    sender: str
    receiver: str
    count: int
    critical_count: int
    critical_sum: float
    types: dict[str, int] = field(default_factory=dict)
    critical: Sketch = field(default_factory=dict)

    @property
    def critical_mean(self) -> float | None:
        """Of those with a critical time."""
        return self.critical_sum / self.critical_count if self.critical_count else None

    def critical_of(self, fraction: float) -> float | None:
        """A quantile of the critical time; None where sketches were too many to merge."""
        return quantile(self.critical, fraction)


def read_edges(asked: FiguresAsked, *, most: int = MOST_EDGES) -> list[Edge]:
    """The edges with the most messages, from or to the endpoint where one is asked for; three statements."""
    wanted = asked.in_steps_of(max(asked.seconds, HOUR))
    ends = Q(sender=asked.endpoint) | Q(receiver=asked.endpoint) if asked.endpoint else Q()
    kind = Q(message_type=asked.message_type) if asked.message_type else Q()
    rows = ConversationEdge.objects.using(managed_alias()).filter(wanted.in_time, ends, kind)
    sums = {"total": Sum("count"), "measured": Sum("critical_count"), "seconds_sum": Sum("critical_sum")}
    found: dict[tuple[str, str], Edge] = {}
    for each in rows.values("sender", "receiver", "message_type").annotate(**sums).order_by("-total")[: most * 20]:
        edge = found.setdefault((each["sender"], each["receiver"]), Edge(each["sender"], each["receiver"], 0, 0, 0.0))
        edge.count += each["total"] or 0
        edge.critical_count += each["measured"] or 0
        edge.critical_sum += each["seconds_sum"] or 0.0
        edge.types[each["message_type"]] = each["total"] or 0
    best = sorted(found.values(), key=lambda each: (-each.count, each.sender, each.receiver))[:most]
    kept = {(each.sender, each.receiver): each for each in best}
    for seconds in sorted({wanted.seconds, DAY}):
        rows = ConversationEdge.objects.using(managed_alias()).filter(wanted.in_steps_of(seconds).in_time, ends, kind)
        if rows.values("pk")[: MOST_SKETCHES + 1].count() <= MOST_SKETCHES:
            for sender, receiver, sketch in rows.values_list("sender", "receiver", "critical_sketch"):
                if (sender, receiver) in kept:
                    _merge(kept[sender, receiver].critical, sketch)
            break
    return best


def _merge(into: Sketch, more: Any) -> None:
    for bucket, count in from_json(more).items():
        into[bucket] = into.get(bucket, 0) + count


@dataclass(frozen=True, slots=True)
class UsageRead:
    """What endpoints have handled, by day and by endpoint (messages, failures, bytes), and what was taken from queues."""

    by_day: dict[date, tuple[int, int, int]]
    by_endpoint: list[tuple[str, int, int, int]]
    queues: list[dict[str, Any]]
    instances: Sequence[EndpointSeen]


def read_usage(asked: FiguresAsked) -> UsageRead:
    """Usage of the days that the time touches; four statements."""
    alias = managed_alias()
    rows = UsageDay.objects.using(alias).filter(asked.in_days, *([Q(endpoint=asked.endpoint)] if asked.endpoint else []))
    sums = {"m": Sum("messages"), "f": Sum("failures"), "b": Sum("bytes")}
    by_day: defaultdict[date, tuple[int, int, int]] = defaultdict(lambda: (0, 0, 0))
    for each in rows.values("day").annotate(**sums).order_by("day"):
        by_day[each["day"]] = (each["m"], each["f"], each["b"])
    counted = rows.values("endpoint").annotate(**sums).order_by("-m", "endpoint")[:MOST_ROWS]
    by_endpoint = [(each["endpoint"], each["m"], each["f"], each["b"]) for each in counted]
    totals = {f"sum_{name}": Sum(name) for name in ("taken", "copied", "expired", "unreadable", "bytes")}
    queues = QueueFigures.objects.using(alias).filter(asked.in_days).values("queue").annotate(**totals)
    seen = EndpointSeen.objects.using(alias).filter(last_seen__gte=asked.begin).order_by("endpoint", "machine", "pk")
    if asked.endpoint:
        seen = seen.filter(endpoint=asked.endpoint)
    return UsageRead(dict(by_day), by_endpoint, list(queues.order_by("queue")[:MOST_ROWS]), list(seen[:MOST_ROWS]))


def read_notable(asked: FiguresAsked, kind: str, *, most: int = 20) -> list[NotableMessage]:
    """The messages with the largest values of a kind, of the days that the time touches; one statement."""
    rows = NotableMessage.objects.using(managed_alias()).filter(asked.in_days, asked.of_messages, kind=kind)
    return list(rows.order_by("-value", "day", "rank")[:most])
