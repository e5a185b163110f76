"""Which failed messages are meant: chosen one by one, a group, or what filters let through. For lists and for what is done."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import reduce
from operator import and_
from typing import Any, Final, Self
from uuid import UUID

from django.db.models import Q, QuerySet
from django.http import QueryDict
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from sqlqueue_app.instances import managed_alias
from sqlqueue_app.messages import failure_groups
from sqlqueue_app.models import FailedMessage, FailureGroup, FailureStatus

# What an address of a page, and one statement, can hold.
MOST_IDS: Final = 500
# The names of ServiceControl's classifiers (operations reference 3.2), by the short ones that addresses of pages use.
CLASSIFIERS: Final[Mapping[str, str]] = {key: each.name for key, each in failure_groups.CLASSIFIERS.items()}
# With this parameter the chosen ids are meant and nothing else, also where a form was sent with none of its boxes checked.
ONLY_IDS: Final = ("only", "ids")
_TEXTS: Final = ("endpoint", "message_type", "queue", "exception", "conversation", "message_id", "retried_to", "text")
_TIMES: Final = ("since", "until")
_SEARCHED: Final = ("message_id", "message_type", "exception_type", "exception_message", "endpoint", "failed_q", "conversation_id")


@dataclass(frozen=True, slots=True)
class FailureSelection:
    """A choice of failed messages: those to which everything applies that is said here; with nothing said, all.

    `classifier` is one of CLASSIFIERS and says by what the `group` was made; without it a group of any kind is meant. `also` is a
    second group, of any kind, in which a message must be. Texts are compared as they are, case included; with `*` in them, which
    stands for any characters, case is not looked at. `message_type` and `exception` may leave out what stands before a dot, `queue`
    is the failed queue or the error queue, `message_id` the message id or the unique one, `retried_to` where a retry has put it.
    Each word of `text`, or phrase in double quotes, must stand somewhere in ids, type, exception, endpoint, queue. `since` and
    `until` are aware, and of the last failure; `until` is not included.

    `problems` say what could not be read: such a selection has nothing in it, so that no mistake selects more than was meant.
    """

    ids: tuple[UUID, ...] = ()
    group: UUID | None = None
    classifier: str = ""
    also: UUID | None = None
    statuses: tuple[FailureStatus, ...] = ()
    endpoint: str = ""
    message_type: str = ""
    queue: str = ""
    exception: str = ""
    conversation: str = ""
    message_id: str = ""
    retried_to: str = ""
    text: str = ""
    since: datetime | None = None
    until: datetime | None = None
    problems: tuple[str, ...] = field(default=(), compare=False)

    @property
    def is_everything(self) -> bool:
        """Whether nothing is said but, maybe, the status: also with patterns and texts that every message fits."""
        if (
            self.ids
            or self.group is not None
            or self.also is not None
            or self.since is not None
            or self.until is not None
            or _words(self.text)
        ):
            return False
        return not any(getattr(self, name).strip("*") for name in _TEXTS if name != "text")

    def or_statuses(self, *statuses: FailureStatus) -> Self:
        """The same with these statuses, unless some are said or messages are chosen one by one."""
        return self if self.statuses or self.ids else replace(self, statuses=statuses)

    def with_problems(self, *problems: str) -> Self:
        """The same with further problems."""
        return replace(self, problems=(*self.problems, *problems))

    def queryset(self) -> QuerySet[FailedMessage]:
        """The messages, in the managed tables, in no order."""
        found = FailedMessage.objects.using(managed_alias())
        return found.none() if self.problems else found.filter(self._condition())

    def _condition(self) -> Q:
        conditions: tuple[tuple[object, Callable[[], Q]], ...] = (
            (self.ids, lambda: Q(pk__in=self.ids)),
            (self.group, lambda: _in_group(self.group, self.classifier)),
            (self.also, lambda: _in_group(self.also, "")),
            (self.statuses, lambda: Q(status__in=self.statuses)),
            (self.endpoint, lambda: _matches("endpoint", self.endpoint)),
            (self.message_type, lambda: _matches("message_type", self.message_type, last_part=True)),
            (self.queue, lambda: _matches("failed_q", self.queue) | _matches("queue", self.queue)),
            (self.exception, lambda: _matches("exception_type", self.exception, last_part=True)),
            (self.conversation, lambda: _matches("conversation_id", self.conversation)),
            (self.message_id, lambda: _has_id(self.message_id)),
            (self.retried_to, lambda: _matches("retried_to", self.retried_to)),
            (self.text, lambda: _all_of(_contains(word) for word in _words(self.text))),
            (self.since, lambda: Q(failed_at__gte=self.since)),
            (self.until, lambda: Q(failed_at__lt=self.until)),
        )
        return _all_of(make() for said, make in conditions if said)

    # --- as JSON, for the row of an operation ---------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """What is said, as values of JSON; nothing of what is not."""
        return {name: _plain(value) for name, value in self._said()}

    @classmethod
    def from_json(cls, document: object) -> Self:
        """The selection of `to_json`. What is no such document has problems."""
        if not isinstance(document, dict):
            return cls(problems=(_("The selection cannot be read: it is no object."),))
        lists = {
            name: [str(each) for each in value] if isinstance(value, list) else [str(value)] for name, value in document.items()
        }
        unknown = sorted(set(lists) - {each.name for each in fields(cls)})
        read: Self = _read(cls, lists)
        more = tuple(_("The selection has an unknown part: %(name)s") % {"name": name} for name in unknown)
        return replace(read, problems=(*read.problems, *more))

    # --- as a query string, for lists and links -------------------------------------------------------------------------------

    def to_query(self) -> str:
        """The query string of the selection, without a question mark; empty for everything."""
        query = QueryDict(mutable=True)
        for name, value in self.to_fields():
            query.appendlist(name, value)
        return query.urlencode()

    def to_fields(self) -> list[tuple[str, str]]:
        """The same as pairs of names and values, for the hidden fields of a form."""
        pairs = []
        for name, value in self._said():
            plain = _plain(value)
            pairs += [(name, str(each)) for each in (plain if isinstance(plain, list) else [plain])]
        return pairs

    @classmethod
    def from_query(cls, query: QueryDict) -> Self:
        """The selection that a query string or a form says. Other parameters are not looked at; wrong values are problems."""
        lists = {name: query.getlist(name) for name in query}
        if ONLY_IDS[1] in lists.get(ONLY_IDS[0], []):
            lists = {"ids": lists.get("ids", [])}
            if not any(each.strip() for each in lists["ids"]):
                return cls(problems=(_("No message is chosen."),))
        read: Self = _read(cls, lists)
        return read

    def _said(self) -> list[tuple[str, Any]]:
        values = ((each.name, getattr(self, each.name)) for each in fields(self) if each.name != "problems")
        return [(name, value) for name, value in values if value not in ("", None, ())]

    # --- in words -------------------------------------------------------------------------------------------------------------

    def in_words(self) -> str:
        """The selection in words, in the current language: what stands beside each number and button. One statement for a group."""
        if self.problems:
            return _("nothing")
        parts = [*self._chosen_in_words(), *self._filters_in_words()]
        statuses = ", ".join(str(FailureStatus(each).label) for each in self.statuses)
        if statuses:
            parts.append(_("status %(statuses)s") % {"statuses": statuses})
        return "; ".join(parts) if parts else _("all failed messages")

    def _chosen_in_words(self) -> list[str]:
        parts = []
        if len(self.ids) == 1:
            parts.append(_("the message %(id)s") % {"id": self.ids[0]})
        elif self.ids:
            parts.append(
                ngettext("%(count)d chosen message", "%(count)d chosen messages", len(self.ids)) % {"count": len(self.ids)}
            )
        groups = [each for each in (self.group, self.also) if each is not None]
        if groups:
            titles = dict(FailureGroup.objects.using(managed_alias()).filter(pk__in=groups).values_list("pk", "title"))
            parts += [_("the group “%(title)s”") % {"title": titles.get(each) or each} for each in groups]
        return parts

    def _filters_in_words(self) -> list[str]:
        templates = (
            (self.endpoint, _("endpoint %(value)s")),
            (self.message_type, _("type %(value)s")),
            (self.queue, _("queue %(value)s")),
            (self.exception, _("exception %(value)s")),
            (self.conversation, _("conversation %(value)s")),
            (self.message_id, _("id %(value)s")),
            (self.retried_to, _("sent again to %(value)s")),
            (self.text, _("with the text “%(value)s”")),
            (_time_in_words(self.since), _("failed since %(value)s")),
            (_time_in_words(self.until), _("failed before %(value)s")),
        )
        return [template % {"value": value} for value, template in templates if value]


# --- conditions ---------------------------------------------------------------------------------------------------------------


def _all_of(conditions: Iterable[Q]) -> Q:
    return reduce(and_, conditions, Q())


def _in_group(group: UUID | None, classifier: str) -> Q:
    condition = Q()
    for each in [classifier] if classifier in CLASSIFIERS else CLASSIFIERS:
        condition |= Q(**{f"{each}_group": group})
    return condition


def _matches(column: str, text: str, *, last_part: bool = False) -> Q:
    first, *rest = text.split("*")
    if not rest:
        exactly = Q(**{column: text})
        return exactly | Q(**{f"{column}__endswith": f".{text}"}) if last_part else exactly
    *middle, last = rest
    condition = Q(**{f"{column}__istartswith": first}) if first else Q()
    if last:
        condition &= Q(**{f"{column}__iendswith": last})
    for each in filter(None, middle):
        condition &= Q(**{f"{column}__icontains": each})
    return condition


def _has_id(text: str) -> Q:
    condition = Q(message_id=text)
    unique = failure_groups.guid_of(text)
    if unique is None:
        return condition
    # A message id is written in one way, and typed in others.
    return condition | Q(pk=unique) | Q(message_id=str(unique))


def _contains(word: str) -> Q:
    condition = Q()
    for column in _SEARCHED:
        condition |= Q(**{f"{column}__icontains": word})
    unique = failure_groups.guid_of(word)
    return condition if unique is None else condition | Q(pk=unique)


def _words(text: str) -> list[str]:
    splitter = shlex.shlex(text, posix=True)
    splitter.whitespace_split, splitter.quotes, splitter.commenters, splitter.escape = True, '"', "", ""
    try:
        return [word for word in splitter if word]
    except ValueError:  # a quotation mark without its other
        return text.replace('"', " ").split()


# --- values -------------------------------------------------------------------------------------------------------------------


def _read(cls: type[FailureSelection], lists: Mapping[str, list[str]]) -> Any:
    """A selection from the values of its parts; several, and commas between them, only for ids and statuses."""
    problems: list[str] = []
    values: dict[str, Any] = {}
    values["ids"] = _read_ids(_several(lists, "ids"), problems)
    values["group"], values["classifier"] = _read_group(lists, problems)
    values["also"] = _read_group_id(_last(lists, "also"), problems)
    values["statuses"] = tuple(dict.fromkeys(filter(None, (_read_status(each, problems) for each in _several(lists, "statuses")))))
    for name in _TEXTS:
        # No column holds a U+0000, and PostgreSQL refuses to look for one.
        values[name] = _last(lists, name).replace("\x00", "\N{REPLACEMENT CHARACTER}")
    for name in _TIMES:
        values[name] = _read_time(_last(lists, name), problems)
    return cls(**values, problems=tuple(problems))


def _several(lists: Mapping[str, list[str]], name: str) -> list[str]:
    return [part.strip() for each in lists.get(name, []) for part in each.split(",") if part.strip()]


def _last(lists: Mapping[str, list[str]], name: str) -> str:
    return (lists.get(name) or [""])[-1].strip()


def _read_ids(texts: list[str], problems: list[str]) -> tuple[UUID, ...]:
    if len(texts) > MOST_IDS:
        problems.append(_("Choose at most %(most)d messages at once, or a group or filter.") % {"most": MOST_IDS})
        return ()
    found = []
    for text in texts:
        if (unique := failure_groups.guid_of(text)) is None:
            problems.append(_("“%(value)s” is no id of a failed message.") % {"value": text[:80]})
        else:
            found.append(unique)
    return tuple(dict.fromkeys(found))


def _read_group(lists: Mapping[str, list[str]], problems: list[str]) -> tuple[UUID | None, str]:
    group, classifier = _read_group_id(_last(lists, "group"), problems), _last(lists, "classifier")
    short = {name: short for short, name in CLASSIFIERS.items()}.get(classifier, classifier)
    return group, short if group is not None and short in CLASSIFIERS else ""


def _read_group_id(text: str, problems: list[str]) -> UUID | None:
    group = failure_groups.guid_of(text) if text else None
    if text and group is None:
        problems.append(_("“%(value)s” is no id of a group.") % {"value": text[:80]})
    return group


def _read_status(text: str, problems: list[str]) -> FailureStatus | None:
    known = {each.name.lower(): each for each in FailureStatus} | {str(each.value): each for each in FailureStatus}
    status = known.get(text.lower().replace(" ", "_"))
    if status is None:
        expected = ", ".join(each.name.lower() for each in FailureStatus)
        problems.append(_("“%(value)s” is no status; there are %(expected)s.") % {"value": text[:80], "expected": expected})
    return status


def _read_time(text: str, problems: list[str]) -> datetime | None:
    if not text:
        return None
    try:
        instant = parse_datetime(text)
        # A plus in an address that nobody has quoted has become a space.
        instant = parse_datetime(text.replace(" ", "+")) if instant is None else instant
        if instant is not None:
            return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)
    except (ValueError, OverflowError):
        pass  # in the form of an instant, but there is none such
    problems.append(_("“%(value)s” is no time; write it as 2026-11-21T14:30:00Z.") % {"value": text[:80]})
    return None


def _time_in_words(instant: datetime | None) -> str:
    return "" if instant is None else f"{instant.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, FailureStatus):
        return value.name.lower()
    return value.isoformat() if isinstance(value, datetime) else str(value)
