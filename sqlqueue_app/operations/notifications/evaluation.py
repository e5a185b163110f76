"""Looking at all rules, by one process of the cluster for all: what has changed, and whether it is time to tell of it.

The claim, what is remembered of each rule, and the notifications that are to be sent are one transaction: whoever is killed leaves
nothing half done, and nobody is told twice.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from django.db import InterfaceError, OperationalError, transaction

from sqlqueue_app.conf import Settings
from sqlqueue_app.instances import DEAD_AFTER_SECONDS, managed_alias
from sqlqueue_app.models import NotificationDelivery, NotificationKind, NotificationRule
from sqlqueue_app.operations.claims import claim
from sqlqueue_app.operations.notifications.conditions import Look, Looks, Reading
from sqlqueue_app.tables.clock import database_now
from sqlqueue_app.tables.connections import connection_of, database_errors, dialect_of_connection

logger = logging.getLogger("sqlqueue.notifications")

LOOK_SECONDS: Final = 10.0
# So many changes are told one by one in a notification; of the rest is told how many they are.
TOLD_AT_MOST: Final = 100
# A subject of which nothing is known any more, such as a queue that was dropped, is done with after this.
MISSING_AT_MOST: Final = timedelta(hours=1)
# A group may be committed after one that was seen later: so long before the last one is looked at again.
LATE_AT_MOST: Final = timedelta(minutes=10)
# Instances come and go with each deployment: so long is waited for them to come back, as for one that is silent.
HELD: Final[Mapping[str, timedelta]] = {NotificationKind.INSTANCES_BELOW: timedelta(seconds=DEAD_AFTER_SECONDS)}
RAISED, RESOLVED, GONE, NEW = "raised", "resolved", "gone", "new"
# What is known of a subject by more than its name.
_NAMED: Final = ("check", "check_of")

Change = dict[str, Any]


class Evaluator:
    """Looks at the enabled rules. `now` is the clock of the managed tables' database unless another is handed in."""

    def __init__(self, settings: Settings, *, now: Callable[[], datetime] | None = None) -> None:
        self._settings = settings
        self._alias = managed_alias()
        self._now = now or partial(database_now, self._alias)

    def evaluate(self) -> int:
        """Look at every enabled rule, unless another process has in these ten seconds; how many notifications are to be sent.

        Raises DatabaseError. A rule that cannot be looked at is logged, and the others are.
        """
        with database_errors(dialect_of_connection(connection_of(self._alias)), "look at the rules of notifications"):
            now = self._now()
            begin = datetime.fromtimestamp(now.timestamp() // LOOK_SECONDS * LOOK_SECONDS, UTC)
            with transaction.atomic(using=self._alias):
                if not claim(self._alias, "notifications", begin):
                    return 0
                rules = NotificationRule.objects.using(self._alias).filter(enabled=True).order_by("pk")
                looks = Looks(self._settings, self._alias, now)
                return sum(self._look_at(rule, looks, now) for rule in rules.select_for_update())

    def _look_at(self, rule: NotificationRule, looks: Looks, now: datetime) -> int:
        try:
            with transaction.atomic(using=self._alias):
                before = _kept(rule)
                _add(rule, _changes(rule, looks, now))
                told = _tell(rule, now)
                if told is not None:
                    told.save(using=self._alias, force_insert=True)
                if _kept(rule) != before:
                    rule.save(using=self._alias, update_fields=list(_KEPT))
        except (OperationalError, InterfaceError):
            raise
        except Exception:
            extra = {"event": "notification_rule_failed"}
            logger.exception("the notification rule %r could not be looked at", rule.name, extra=extra)
            return 0
        return int(told is not None)


_KEPT: Final = ("raised", "pending", "seen", "notified_at")


def _kept(rule: NotificationRule) -> tuple[Any, ...]:
    return tuple(getattr(rule, name) for name in _KEPT)


def _changes(rule: NotificationRule, looks: Looks, now: datetime) -> Iterable[Change]:
    """What has changed since the last look, and note it in the rule."""
    if rule.kind == NotificationKind.NEW_GROUP:
        return _new_groups(rule, looks)
    raised: dict[str, Any] = {name: dict(entry) for name, entry in rule.raised.items()}
    look = looks.look(rule)
    held = {name: at for name, at in rule.seen.get("held", {}).items() if name in look.readings}
    over = dict(_held(look, held, now, HELD.get(rule.kind, timedelta())))
    changes = [*_risen(raised, over, now), *_fallen(raised, look, now)]
    rule.raised, rule.seen = raised, {"held": held} if held else {}
    return changes


def _held(look: Look, held: dict[str, str], now: datetime, hold: timedelta) -> Iterator[tuple[str, Reading]]:
    """What has been over its threshold for long enough; `held` notes since when the rest is."""
    for subject, reading in sorted(look.readings.items()):
        if not reading.is_over:
            held.pop(subject, None)
        elif now - datetime.fromisoformat(held.setdefault(subject, now.isoformat())) >= hold:
            del held[subject]
            yield subject, reading


def _risen(raised: dict[str, Any], over: dict[str, Reading], now: datetime) -> Iterator[Change]:
    at = now.isoformat()
    for subject, reading in over.items():
        if subject not in raised:
            raised[subject] = {"since": at, **{name: reading.more[name] for name in _NAMED if name in reading.more}}
            numbers = {"value": reading.value, "threshold": reading.threshold}
            yield {"change": RAISED, "subject": subject, "at": at, **numbers, **reading.more}


def _fallen(raised: dict[str, Any], look: Look, now: datetime) -> Iterator[Change]:
    at = now.isoformat()
    for subject in sorted(raised):
        reading = look.readings.get(subject)
        if reading is not None and reading.is_over:
            raised[subject].pop("missing_since", None)
        elif subject in look.muted:
            del raised[subject]
        elif reading is not None or look.is_complete:
            named = {name: value for name, value in raised.pop(subject).items() if name in _NAMED}
            yield {"change": RESOLVED, "subject": subject, "at": at, "value": reading.value if reading else None, **named}
        elif now - datetime.fromisoformat(raised[subject].setdefault("missing_since", at)) >= MISSING_AT_MOST:
            del raised[subject]
            yield {"change": GONE, "subject": subject, "at": at}


def _new_groups(rule: NotificationRule, looks: Looks) -> list[Change]:
    known: dict[str, str] = rule.seen.get("groups", {})
    last = max(map(datetime.fromisoformat, known.values()), default=None)
    begin = _instant(rule.watched_from or rule.changed_at)
    since = begin if last is None else max(begin, last - LATE_AT_MOST)
    found = looks.new_groups(rule, since)
    new = sorted((at, key) for key, at in found.items() if str(key) not in known)
    if not new:
        return []
    newest = new[-1][0] if last is None else max(last, new[-1][0])
    seen = {**known, **{str(key): at.isoformat() for at, key in new}}
    rule.seen = {"groups": {key: at for key, at in seen.items() if datetime.fromisoformat(at) >= newest - LATE_AT_MOST}}
    titles = looks.titles([key for _at, key in new[:TOLD_AT_MOST]])
    return [{"change": NEW, "subject": titles.get(key, ""), "group": str(key), "at": at.isoformat()} for at, key in new]


def _add(rule: NotificationRule, changes: Iterable[Change]) -> None:
    """Note what is to be told."""
    told = list(changes)
    if told:
        waiting = [*rule.pending.get("changes", ()), *told]
        rule.pending = {
            "changes": waiting[:TOLD_AT_MOST],
            "more": rule.pending.get("more", 0) + max(0, len(waiting) - TOLD_AT_MOST),
        }


def _tell(rule: NotificationRule, now: datetime) -> NotificationDelivery | None:
    """The notification of all that is to be told, unless the last one was too short a time ago."""
    if not rule.pending.get("changes"):
        return None
    # A clock that was put back must not keep anybody waiting.
    if rule.notified_at is not None and timedelta() <= now - rule.notified_at < timedelta(seconds=rule.throttle_seconds):
        return None
    raised = sorted(rule.raised)
    payload = {**rule.pending, "raised": raised[:TOLD_AT_MOST], "raised_count": len(raised)}
    rule.pending, rule.notified_at = {}, now
    return new_delivery(rule, payload, now)


def new_delivery(rule: NotificationRule, payload: dict[str, Any], now: datetime, *, is_test: bool = False) -> NotificationDelivery:
    """A notification of the rule that waits to be sent, not saved yet."""
    return NotificationDelivery(
        pk=uuid.uuid4(),
        rule=rule,
        rule_name=rule.name,
        channel=rule.channel,
        target=rule.target,
        is_test=is_test,
        payload={"kind": rule.kind, "of": rule.subject, "threshold": rule.threshold, **payload},
        created_at=now,
        next_attempt_at=now,
    )


def _instant(value: datetime | None) -> datetime:
    instant: datetime = value  # type: ignore[assignment]  # of columns that are never NULL
    return instant
