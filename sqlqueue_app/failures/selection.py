"""Selections of failed messages: by id, by group, or by filters. Used by lists and by bulk operations.

A selection can be written as JSON (the row of an operation), as a query string (links and forms), as the text of the query bar, and
as a description for people.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import and_
from typing import Any, Final, Self
from uuid import UUID

from django.db.models import Exists, F, Max, OuterRef, Q, QuerySet
from django.db.models.lookups import IContains
from django.http import QueryDict
from django.utils.dateparse import parse_datetime
from django.utils.text import capfirst
from django.utils.translation import gettext as _, ngettext

from sqlqueue_app.messages import failure_groups
from sqlqueue_app.messages.envelope import guid_of
from sqlqueue_app.models import FailedAttempt, FailedMessage, FailureGroup, FailureStatus, managed_alias
from sqlqueue_app.status.queues import address_of_queue

# The maximum that a URL and one statement can hold.
MAX_IDS: Final = 500
# Each word is compared with every searched column and each part of a pattern is a value: SQL Server takes 2,100 in a statement.
MAX_WORDS: Final = 50
MAX_PARTS: Final = 20
# Names of ServiceControl's classifiers by the short names that URLs use.
CLASSIFIERS: Final[Mapping[str, str]] = {key: each.name for key, each in failure_groups.CLASSIFIERS.items()}
# With this parameter only the ids count, even if none was checked in the form.
ONLY_IDS: Final = ("only", "ids")
_TEXTS: Final = ("endpoint", "message_type", "queue", "exception", "conversation", "message_id", "retried_to", "text")
_TIMES: Final = ("since", "until")
_SEARCHED: Final = ("message_id", "message_type", "exception_type", "exception_message", "endpoint", "failed_q", "conversation_id")


@dataclass(frozen=True, slots=True)
class FailureSelection:
    """Failed messages that match every part that is set; an empty selection matches all.

    `group` is a group of `classifier` (one of CLASSIFIERS), or of any classifier if that is empty; `also` is a second group of any
    classifier. `operation` is the bulk operation that last changed their status. Texts match exactly; with `*`, which stands for
    any characters, case is ignored. `message_type` and `exception` match without their namespace too, `queue` matches the failed
    queue by name or address, or the error queue, `message_id` the message id or the unique id, `retried_to` the target of the last
    retry. Each word or quoted phrase of `text` must occur in ids, type, exception, endpoint or queue. `since` and `until` are aware
    and refer to the last failure; `until` is exclusive. `newest` is the key of the newest FailedAttempt of the index that counts:
    messages that failed after it are left out.

    A selection with `problems`, parts that could not be read, matches nothing, so that a mistake never selects too much.
    """

    ids: tuple[UUID, ...] = ()
    group: UUID | None = None
    classifier: str = ""
    also: UUID | None = None
    operation: UUID | None = None
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
    newest: int | None = None
    problems: tuple[str, ...] = field(default=(), compare=False)

    @property
    def is_everything(self) -> bool:
        """Whether nothing but the status restricts the selection; patterns that match everything do not count."""
        if any((self.ids, self.group, self.also, self.operation, self.since, self.until, _words(self.text))):
            return False
        return not any(getattr(self, name).strip("*") for name in _TEXTS if name != "text")

    def or_statuses(self, *statuses: FailureStatus) -> Self:
        """A copy with these statuses, unless the selection names statuses or ids."""
        return self if self.statuses or self.ids else replace(self, statuses=statuses)

    def as_of_now(self) -> Self:
        """A copy without the messages that fail from now on, unless it has `newest`. One statement."""
        if self.newest is not None:
            return self
        last = FailedAttempt.objects.using(managed_alias()).aggregate(last=Max("pk"))["last"]
        return replace(self, newest=last or 0)

    def with_problems(self, *problems: str) -> Self:
        return replace(self, problems=(*self.problems, *problems))

    def queryset(self) -> QuerySet[FailedMessage]:
        """The messages in the managed tables, unordered."""
        found = FailedMessage.objects.using(managed_alias())
        return found.none() if self.problems else found.filter(self._condition())

    def _condition(self) -> Q:
        conditions: tuple[tuple[object, Callable[[], Q]], ...] = (
            (self.ids, lambda: Q(pk__in=self.ids)),
            (self.group, lambda: _in_group(self.group, self.classifier)),
            (self.also, lambda: _in_group(self.also, "")),
            (self.operation, lambda: Q(operation=self.operation)),
            (self.statuses, lambda: Q(status__in=self.statuses)),
            (self.endpoint, lambda: _matches("endpoint", self.endpoint)),
            (self.message_type, lambda: _matches("message_type", self.message_type, last_part=True)),
            (self.queue, lambda: _of_queue(self.queue)),
            (self.exception, lambda: _matches("exception_type", self.exception, last_part=True)),
            (self.conversation, lambda: _matches("conversation_id", self.conversation)),
            (self.message_id, lambda: _of_id(self.message_id)),
            (self.retried_to, lambda: _matches("retried_to", self.retried_to)),
            (self.text, lambda: _all_of(_contains(word) for word in _words(self.text))),
            (self.since, lambda: Q(failed_at__gte=self.since)),
            (self.until, lambda: Q(failed_at__lt=self.until)),
            (self.newest is not None, lambda: ~_failed_after(self.newest)),
        )
        return _all_of(make() for value, make in conditions if value)

    def to_json(self) -> dict[str, Any]:
        """The parts that are set, as JSON values."""
        return {name: _plain(value) for name, value in self._given()}

    @classmethod
    def from_json(cls, document: object) -> Self:
        """The inverse of `to_json`. Anything else gives a selection with problems."""
        if not isinstance(document, dict):
            return cls(problems=(_("The selection cannot be read: it is not an object."),))
        lists = {
            name: [str(each) for each in value] if isinstance(value, list) else [str(value)] for name, value in document.items()
        }
        unknown = sorted(set(lists) - {each.name for each in fields(cls)})
        read: Self = _read(cls, lists)
        more = tuple(_("The selection has an unknown part: %(name)s") % {"name": name} for name in unknown)
        return replace(read, problems=(*read.problems, *more))

    def to_query(self) -> str:
        """The query string without a question mark; empty for everything."""
        query = QueryDict(mutable=True)
        for name, value in self.to_fields():
            query.appendlist(name, value)
        return query.urlencode()

    def to_fields(self) -> list[tuple[str, str]]:
        """Pairs of names and values for the hidden fields of a form."""
        pairs = []
        for name, value in self._given():
            plain = _plain(value)
            pairs += [(name, str(each)) for each in (plain if isinstance(plain, list) else [plain])]
        return pairs

    @classmethod
    def from_query(cls, query: QueryDict) -> Self:
        """The selection of a query string or form. Unknown parameters are ignored, invalid values are problems."""
        lists = {name: query.getlist(name) for name in query}
        if ONLY_IDS[1] in lists.get(ONLY_IDS[0], []):
            lists = {"ids": lists.get("ids", [])}
            if not any(each.strip() for each in lists["ids"]):
                return cls(problems=(_("No message is chosen."),))
        read: Self = _read(cls, lists)
        return read

    def _given(self) -> list[tuple[str, Any]]:
        values = ((each.name, getattr(self, each.name)) for each in fields(self) if each.name != "problems")
        return [(name, value) for name, value in values if value not in ("", None, ())]

    def in_words(self) -> str:
        """A description in the current language, shown beside numbers and buttons. One statement for a group."""
        if self.problems:
            return _("nothing")
        parts = [*self._describe_chosen(), *self._describe_filters()]
        statuses = ", ".join(str(FailureStatus(each).label) for each in self.statuses)
        if statuses:
            parts.append(statuses if parts else capfirst(statuses))
        return "; ".join(parts) if parts else _("all failed messages")

    def _describe_chosen(self) -> list[str]:
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
        if self.operation is not None:
            parts.append(_("retried or changed by an operation"))
        return parts

    def _describe_filters(self) -> list[str]:
        templates = (
            (self.endpoint, _("endpoint %(value)s")),
            (self.message_type, _("type %(value)s")),
            (self.queue, _("queue %(value)s")),
            (self.exception, _("exception %(value)s")),
            (self.conversation, _("conversation %(value)s")),
            (self.message_id, _("id %(value)s")),
            (self.retried_to, _("sent again to %(value)s")),
            (self.text, _("with the text “%(value)s”")),
            (_format_time(self.since), _("failed since %(value)s")),
            (_format_time(self.until), _("failed before %(value)s")),
        )
        return [template % {"value": value} for value, template in templates if value]


def _all_of(conditions: Iterable[Q]) -> Q:
    return reduce(and_, conditions, Q())


def _in_group(group: UUID | None, classifier: str) -> Q:
    condition = Q()
    for each in [classifier] if classifier in CLASSIFIERS else CLASSIFIERS:
        condition |= Q(**{f"{each}_group": group})
    return condition


def _failed_after(newest: int | None) -> Q:
    return Q(Exists(FailedAttempt.objects.using(managed_alias()).filter(failure=OuterRef("pk"), pk__gt=newest)))


def _matches(column: str, text: str, *, last_part: bool = False) -> Q:
    if "*" not in text:
        exactly = Q(**{column: text})
        return exactly | Q(**{f"{column}__endswith": f".{text}"}) if last_part else exactly
    return Q(_Like(F(column), text)) if text.strip("*") else Q()


class _Like(IContains):
    """Whether a text has the parts of a pattern in their order, ignoring case."""

    def process_rhs(self, compiler: Any, connection: Any) -> Any:
        """The pattern of LIKE, without the percent signs at its ends that the base class adds."""
        rhs, params = super().process_rhs(compiler, connection)
        return rhs, [str(each)[1:-1].replace("*", "%") for each in params]


def _of_queue(text: str) -> Q:
    # Messages name the queue by its address.
    found = _matches("failed_q", text) | _matches("queue", text)
    return found if "*" in text else found | Q(failed_q=address_of_queue(text))


def _of_id(text: str) -> Q:
    return _matches("message_id", text) if "*" in text else has_id(text)


def has_id(text: str) -> Q:
    """The condition for the messages with exactly this message id or unique id."""
    condition = Q(message_id=text)
    unique = guid_of(text)
    if unique is None:
        return condition
    # People type GUIDs in several forms.
    return condition | Q(pk=unique) | Q(message_id=str(unique))


def _contains(word: str) -> Q:
    condition = Q()
    for column in _SEARCHED:
        condition |= Q(**{f"{column}__icontains": word})
    unique = guid_of(word)
    return condition if unique is None else condition | Q(pk=unique)


def _words(text: str) -> list[str]:
    splitter = shlex.shlex(text, posix=True)
    splitter.whitespace_split, splitter.quotes, splitter.commenters, splitter.escape = True, '"', "", ""
    try:
        return [word for word in splitter if word]
    except ValueError:  # an unbalanced quotation mark
        return text.replace('"', " ").split()


def _read(cls: type[FailureSelection], lists: Mapping[str, list[str]]) -> Any:
    """A selection from lists of values; only ids and statuses take several values or commas."""
    problems: list[str] = []
    values: dict[str, Any] = {}
    values["ids"] = _read_ids(_several(lists, "ids"), problems)
    values["group"], values["classifier"] = _read_group(lists, problems)
    values["also"] = _read_group_id(_last(lists, "also"), problems)
    values["operation"] = _read_group_id(_last(lists, "operation"), problems)
    values["statuses"] = tuple(dict.fromkeys(filter(None, (_read_status(each, problems) for each in _several(lists, "statuses")))))
    for name in _TEXTS:
        # PostgreSQL refuses U+0000 in a query.
        values[name] = _last(lists, name).replace("\x00", "\N{REPLACEMENT CHARACTER}")
    problems += _too_much(values)
    for name in _TIMES:
        values[name] = _read_time(_last(lists, name), problems)
    newest = _last(lists, "newest")
    # Without a valid number nothing is selected.
    values["newest"] = (int(newest) if re.fullmatch("[0-9]{1,18}", newest) else 0) if newest else None
    return cls(**values, problems=tuple(problems))


def _too_much(values: Mapping[str, str]) -> Iterator[str]:
    if len(_words(values["text"])) > MAX_WORDS:
        yield _("Search for at most %(most)d words at once.") % {"most": MAX_WORDS}
    for text in (values[name] for name in _TEXTS if name != "text"):
        if len([part for part in text.split("*") if part]) > MAX_PARTS:
            yield _("“%(value)s” has more than %(most)d parts between asterisks.") % {"value": text[:80], "most": MAX_PARTS}


def _several(lists: Mapping[str, list[str]], name: str) -> list[str]:
    return [part.strip() for each in lists.get(name, []) for part in each.split(",") if part.strip()]


def _last(lists: Mapping[str, list[str]], name: str) -> str:
    return (lists.get(name) or [""])[-1].strip()


def _read_ids(texts: list[str], problems: list[str]) -> tuple[UUID, ...]:
    if len(texts) > MAX_IDS:
        problems.append(_("Choose at most %(most)d messages at once, or a group or filter.") % {"most": MAX_IDS})
        return ()
    found = []
    for text in texts:
        if (unique := guid_of(text)) is None:
            problems.append(_("“%(value)s” is not the id of a failed message.") % {"value": text[:80]})
        else:
            found.append(unique)
    return tuple(dict.fromkeys(found))


def _read_group(lists: Mapping[str, list[str]], problems: list[str]) -> tuple[UUID | None, str]:
    group = _read_group_id(_last(lists, "group"), problems)
    classifier = _last(lists, "classifier")
    short = {name: short for short, name in CLASSIFIERS.items()}.get(classifier, classifier)
    return group, short if group is not None and short in CLASSIFIERS else ""


def _read_group_id(text: str, problems: list[str]) -> UUID | None:
    group = guid_of(text) if text else None
    if text and group is None:
        problems.append(_("“%(value)s” is not the id of a group.") % {"value": text[:80]})
    return group


def _read_status(text: str, problems: list[str]) -> FailureStatus | None:
    known = {each.name.lower(): each for each in FailureStatus} | {str(each.value): each for each in FailureStatus}
    status = known.get(text.lower().replace(" ", "_"))
    if status is None:
        expected = ", ".join(each.name.lower() for each in FailureStatus)
        problems.append(
            _("“%(value)s” is not a status; expected one of %(expected)s.") % {"value": text[:80], "expected": expected}
        )
    return status


def _read_time(text: str, problems: list[str]) -> datetime | None:
    if not text:
        return None
    try:
        instant = parse_datetime(text)
        # An unquoted plus in a URL has become a space.
        instant = parse_datetime(text.replace(" ", "+")) if instant is None else instant
        if instant is not None:
            return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)
    except (ValueError, OverflowError):
        pass  # well-formed, but not a valid instant
    problems.append(_("“%(value)s” is not a valid time; write it as 2026-11-21T14:30:00Z.") % {"value": text[:80]})
    return None


def _format_time(instant: datetime | None) -> str:
    return "" if instant is None else f"{instant.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, FailureStatus):
        return value.name.lower()
    return value.isoformat() if isinstance(value, datetime) else str(value)


# Filters of the query bar and the parts of the selection that they set.
KEYS: Final[Mapping[str, str]] = {
    "type": "message_type",
    "endpoint": "endpoint",
    "status": "statuses",
    "exception": "exception",
    "queue": "queue",
    "conversation": "conversation",
    "id": "message_id",
    "group": "group",
    "also": "also",
    "operation": "operation",
    "retried": "retried_to",
}
ANY_STATUS: Final = "any"
MAX_QUERY_LENGTH: Final = 2_000
_FAILED: Final = "failed"
# In a quoted value, a quotation mark is doubled; in others, as in addresses of PostgreSQL, it is a character.
_QUOTED: Final = r'"(?:[^"]|"")*"'
_TOKEN: Final = re.compile(rf"(?:(?P<key>[A-Za-z]+):)?(?P<value>{_QUOTED}(?!\S)|\S+)")
_AGO: Final = re.compile(r"-([0-9]{1,6})([smhdw])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def read_query(text: str, now: datetime) -> FailureSelection:
    """Parse the query bar: `type:PlaceOrder endpoint:Sales failed:-6h..now "no more"`. Never raises.

    Filters have names, everything else is words; an unknown name belongs to a word, as in `https://…`. The last value of a repeated
    filter counts, and every value of `status:`. Unreadable parts become problems of the selection.
    """
    query = QueryDict(mutable=True)
    words: list[str] = []
    problems: list[str] = []
    if len(text) > MAX_QUERY_LENGTH:
        problems.append(_("The query is longer than %(most)d characters.") % {"most": MAX_QUERY_LENGTH})
    for token in _TOKEN.finditer(text[:MAX_QUERY_LENGTH]):
        key, value = (token["key"] or "").lower(), token["value"]
        if not value.strip('"'):
            words.append(token[0])  # as a filter it would match everything
        elif key == _FAILED:
            _read_times(value.strip('"'), now, query, problems)
        elif key == "status" and value.lower() == ANY_STATUS:
            query.setlist("statuses", [each.name.lower() for each in FailureStatus])
        elif key in KEYS:
            query.appendlist(KEYS[key], _unquoted(value))
        else:
            words.append(token[0])
    query["text"] = " ".join(words)
    found = FailureSelection.from_query(query)
    return found.with_problems(*problems)


def write_query(selection: FailureSelection) -> str:
    """The text of the query bar for a selection, without ids."""
    parts = []
    if set(selection.statuses) == set(FailureStatus):
        parts.append(f"status:{ANY_STATUS}")
    else:
        parts += [f"status:{each.name.lower()}" for each in selection.statuses]
    texts = ((key, getattr(selection, name)) for key, name in KEYS.items() if name != "statuses")
    parts += [f"{key}:{_quoted(str(value))}" for key, value in texts if value]
    since, until = (each.isoformat().replace("+00:00", "Z") if each else "" for each in (selection.since, selection.until))
    if since or until:
        parts.append(f"{_FAILED}:{since}..{until}")
    return " ".join([*parts, selection.text]).strip()


def _quoted(value: str) -> str:
    is_plain = _unquoted(value) == value and not re.search(r"\s", value)
    return value if is_plain else '"' + value.replace('"', '""') + '"'


def _unquoted(value: str) -> str:
    if re.fullmatch(_QUOTED, value):
        return value[1:-1].replace('""', '"')
    stripped = value.strip('"')
    return value if '"' in stripped else stripped


def _read_times(value: str, now: datetime, query: QueryDict, problems: list[str]) -> None:
    begin, dots, end = value.partition("..")
    for name, value in (("since", begin), ("until", end if dots else "")):
        if not value or (value == "now" and name == "until"):
            continue
        ago = _AGO.fullmatch(value)
        try:
            instant = now - timedelta(seconds=int(ago[1]) * _SECONDS[ago[2]]) if ago else now
        except OverflowError:
            problems.append(_("“%(value)s” is not a valid time: it is too long ago.") % {"value": value})
            continue
        query[name] = instant.isoformat() if ago or value == "now" else value
