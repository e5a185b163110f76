"""The validation of settings: one routine reads a dictionary into a dataclass, then rules check combinations.

A section is a dataclass. Its fields are its keys, in upper case and without the ending `_seconds`; their types define the accepted
values:

- `Annotated[…, ValueKind(…)]` and `Literal` are single values, `tuple` is a list, `Mapping` a dictionary.
- Another dataclass is a section below. If a `Mapping` holds several, `entry` is the term for the name of one in messages, and
  the name becomes the attribute `name`.
- `| None`, `| Literal["word"]` and `| Callable[…]` also allow these values.

A wrong value is reported and left out, and the rest is read, so that one run of the checks shows all problems.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, MISSING, dataclass, field, fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from sqlqueue_app.messages.addresses import QueueAddress, check_name
from sqlqueue_app.messages.errors import AddressError, ConfigurationError

if TYPE_CHECKING:
    from sqlqueue_app.conf.settings import EndpointSettings, Settings

T = TypeVar("T")

_SHOWN_CHARACTERS: Final = 120
# Parts of the keys of secrets, including those of Spark and of databases.
_SECRET: Final = re.compile(r"secret|token|passw|pwd|credential|signature|(access|account|api|private)[._-]?key", re.IGNORECASE)
_MIN_SIMILARITY: Final = 0.7
_SLOW_PEEK_SECONDS: Final = 10
# As in tables/installation.py, which this folder does not import.
_SUBSCRIPTION_TABLE: Final = "SubscriptionRouting"
_TITLES: Final = {"postgresql": "PostgreSQL", "sqlite": "SQLite", "sqlserver": "SQL Server"}


class Code(StrEnum):
    """The ids of the settings checks; an id is never used for another problem (docs/reference/checks.md)."""

    NOT_A_DICTIONARY = "sqlqueue.E001"
    UNKNOWN_KEY = "sqlqueue.E002"
    WRONG_TYPE = "sqlqueue.E003"
    OUT_OF_RANGE = "sqlqueue.E004"
    UNKNOWN_WORD = "sqlqueue.E005"
    MISSING_KEY = "sqlqueue.E006"
    BAD_NAME = "sqlqueue.E007"
    BAD_ADDRESS = "sqlqueue.E008"
    BAD_PATTERN = "sqlqueue.E009"
    BAD_DOTTED_PATH = "sqlqueue.E010"
    BAD_CRON = "sqlqueue.E011"
    UNKNOWN_ALIAS = "sqlqueue.E012"
    UNSUPPORTED_DATABASE = "sqlqueue.E013"
    CATALOG_OFF_SQL_SERVER = "sqlqueue.E014"
    SCHEMA_ON_SQLITE = "sqlqueue.E015"
    LOCAL_ENDPOINT = "sqlqueue.E016"
    SHARED_QUEUE = "sqlqueue.E017"
    OWN_QUEUE_AS_TARGET = "sqlqueue.E018"
    RETRIES_WITHOUT_TRANSACTION = "sqlqueue.E019"
    FAILURE_WITH_TRANSACTION = "sqlqueue.E020"
    NAME_TOO_LONG = "sqlqueue.E022"
    DEDUPLICATION_WITHOUT_TRANSACTION = "sqlqueue.E023"
    BAD_NETWORK = "sqlqueue.E024"
    BAD_WEB_ADDRESS = "sqlqueue.E025"
    LAKE_WITH_KEYS = "sqlqueue.E026"
    BAD_RATE = "sqlqueue.E028"
    HARD_LIMIT_FIRST = "sqlqueue.E029"
    TASK_QUEUE = "sqlqueue.E040"
    TASKS_WITHOUT_APP = "sqlqueue.E041"
    SLOW_PEEK = "sqlqueue.W001"
    SQLITE_TRANSACTION_MODE = "sqlqueue.W003"
    WAKE_UP_ON_SQLSERVER = "sqlqueue.W004"
    SCHEDULE_WITHOUT_ROUTE = "sqlqueue.W005"


@dataclass(frozen=True, slots=True)
class KeyPath:
    """The place of a value inside a setting of Django; its text is the expression that reads the value."""

    keys: tuple[object, ...] = ()
    root: str = "SQLQUEUE"

    def __truediv__(self, key: object) -> KeyPath:
        return KeyPath((*self.keys, key), self.root)

    def starts_with(self, other: KeyPath) -> bool:
        """Whether this place is `other` or inside it."""
        return self.root == other.root and self.keys[: len(other.keys)] == other.keys

    def __str__(self) -> str:
        keys = (json.dumps(key, ensure_ascii=False) if isinstance(key, str) else shown(key) for key in self.keys)
        return self.root + "".join(f"[{key}]" for key in keys)


ROOT: Final = KeyPath()


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of the settings: its place, its text, the remedy, and the id of its check."""

    key_path: KeyPath
    message: str
    hint: str
    code: Code

    @property
    def is_error(self) -> bool:
        """Whether sqlqueue refuses to work with it; otherwise it is a warning."""
        return ".E" in self.code


@dataclass(slots=True)
class Findings:
    """The findings of one reading of the settings."""

    places: Mapping[str, str] = field(default_factory=dict)  # key -> the place it belongs to, for keys found elsewhere
    problems: list[Problem] = field(default_factory=list)

    def add(self, at: KeyPath, message: str, hint: str, code: Code) -> None:
        self.problems.append(Problem(at, message, hint, code))

    def has_error_at(self, place: KeyPath) -> bool:
        """Whether the value at this place, or one inside it, is wrong."""
        return any(problem.is_error and problem.key_path.starts_with(place) for problem in self.problems)


def shown(value: object) -> str:
    """`repr(value)`, shortened to fit into a sentence."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"


def shown_at(value: object, at: KeyPath) -> str:
    """As `shown`, but only the type of a value that is a secret by its place, or contains one by its own keys."""
    keys = [str(key) for key in at.keys[-1:]]
    # Only its place marks a text as secret; a list or a dictionary may itself have such keys.
    hidden = any(map(_SECRET.search, keys if isinstance(value, str) else [*keys, repr(value)]))
    # The token itself in place of the dictionary with it.
    hidden = hidden or (isinstance(value, str) and keys == ["METRICS"])
    return f"a value of {type(value).__name__}" if hidden else shown(value)


def suggestion(word: object, known: Iterable[str]) -> str:
    """The end of a sentence about a wrong word: ": did you mean 'x'?", or nothing. Ignores case."""
    if not isinstance(word, str):
        return ""
    by_folded = {candidate.casefold(): candidate for candidate in known}
    near = difflib.get_close_matches(word.casefold(), by_folded, n=1, cutoff=_MIN_SIMILARITY)
    return f": did you mean {by_folded[near[0]]!r}?" if near else ""


def listed(words: Iterable[str], *, last: str = "or") -> str:
    """The words quoted, as prose: "'a', 'b' or 'c'"."""
    quoted = [repr(word) for word in words]
    if len(quoted) < 2:
        return "".join(quoted)
    return f"{', '.join(quoted[:-1])} {last} {quoted[-1]}"


@dataclass(eq=False)
class Refused(Exception):
    """A value does not fit. The message is "<place> <seen>, expected <expected>" unless it is given as a whole."""

    code: Code
    hint: str = ""
    _: KW_ONLY
    seen: str = ""
    expected: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class ValueKind:
    """The requirements for a single value: its types, other conditions, and both as text.

    `read` gets the value and its place, and returns what becomes the attribute; it may raise `Refused`.
    """

    expected: str
    types: tuple[type, ...] = (str,)
    read: Callable[[Any, str], object] = lambda value, _: value
    hint: str = ""  # shown if the type is wrong


def _word(words: tuple[str, ...]) -> ValueKind:
    def read(value: str, _: str) -> str:
        if value not in words:
            hint = "write one of the words as shown, in lower case"
            raise Refused(Code.UNKNOWN_WORD, hint, expected=listed(words) + suggestion(value, words))
        return value

    return ValueKind(listed(words), read=read)


Given = Annotated[T, "not a key"]
"""The type of an attribute that is not read from a key of the section."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A key of a section: the attribute that it becomes, its type as declared, and its default, MISSING if it has none."""

    name: str
    type: Any
    default: object

    @property
    def key(self) -> str:
        return self.name.removesuffix("_seconds").upper()

    @property
    def expected(self) -> str:
        """The accepted values, as the end of "expected …"; also the type column of docs/reference/settings.md."""
        return _expected(self.type)


def _keys_of(section: Any) -> Mapping[str, Setting]:
    types = get_type_hints(section, include_extras=True)
    settings = [
        Setting(each.name, types[each.name], each.default if each.default_factory is MISSING else each.default_factory())
        for each in fields(section)
        if "not a key" not in getattr(types[each.name], "__metadata__", ())
    ]
    return MappingProxyType({setting.key: setting for setting in settings})


keys_of: Final[Callable[[Any], Mapping[str, Setting]]] = cache(_keys_of)
"""The keys of a section, in the order in which they are documented."""


def section_of(kind: Any) -> type[Any] | None:
    """The section that a key holds, once or several times by name; None for any other key."""
    kind = _parts(kind)[0]
    kind = get_args(kind)[1] if get_origin(kind) is Mapping else kind
    return kind if is_dataclass(kind) and isinstance(kind, type) else None


def places_of(section: type[Any], at: str = "SQLQUEUE") -> Mapping[str, str]:
    """The place of each key of a section and of the sections below it; the highest place wins."""
    known = dict.fromkeys(keys_of(section), at)
    for key, setting in keys_of(section).items():
        if (below := section_of(setting.type)) is not None:
            entry = f"[{below.entry}]" if hasattr(below, "entry") else ""
            known = {**places_of(below, f'{at}["{key}"]{entry}'), **known}
    return known


def read_section(section: type[T], value: object, at: KeyPath, findings: Findings) -> T | None:
    """Read a dictionary; wrong values are reported and get their default, and without one the result is None."""
    read = _read(section, value, at, findings)
    return None if read is MISSING else read


@dataclass(frozen=True, slots=True)
class _Alternative:
    """The values that a union allows in addition to its first type: None, a word or a callable."""

    expected: str
    matches: Callable[[object], bool]

    @classmethod
    def of(cls, kind: Any) -> _Alternative:
        if kind is NoneType:
            return cls("None", lambda value: value is None)
        if get_origin(kind) is Literal:
            return cls(listed(get_args(kind)), lambda value: isinstance(value, str) and value in get_args(kind))
        return cls("a callable", callable)


def _parts(kind: Any) -> tuple[Any, list[_Alternative]]:
    main, *others = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return main, [_Alternative.of(other) for other in others]


def _value_kind(kind: Any) -> ValueKind:
    found: ValueKind = _word(get_args(kind)) if get_origin(kind) is Literal else kind.__metadata__[0]
    return found


def _expected(kind: Any) -> str:
    main, others = _parts(kind)
    arguments = get_args(main)
    separator = ", or "
    if is_dataclass(main):
        text = "a dictionary"
    elif get_origin(main) is tuple:
        text, separator = f"a list, each entry {_expected(arguments[0])}", "; or "
    elif get_origin(main) is Mapping:
        text = f"a dictionary, each key {_expected(arguments[0])}, each value {_expected(arguments[1])}"
    else:
        text = _value_kind(main).expected
    return separator.join([text, *(other.expected for other in others)])


def _read(kind: Any, value: object, at: KeyPath, findings: Findings) -> Any:
    """The value for the attribute, without wrong entries; MISSING if it is wrong as a whole. Reports every problem."""
    try:
        return _fitting(kind, value, at, findings)
    except Refused as refused:
        seen = refused.seen or f"is {shown_at(value, at)}"
        message = refused.message or f"{at} {seen}, expected {refused.expected or _expected(kind)}"
        findings.add(at, message, refused.hint or "change the value, or remove the key to get the default", refused.code)
        return MISSING


def _fitting(kind: Any, value: object, at: KeyPath, findings: Findings) -> object:
    """As `_read`, but raises Refused if the value is wrong as a whole."""
    main, others = _parts(kind)
    if any(other.matches(value) for other in others):
        return value
    if is_dataclass(main):
        return _section(main, value, at, findings)
    if get_origin(main) is tuple:
        entries = dict(enumerate(_of_type(value, (list, tuple))))
        return tuple(_entries(get_args(main)[0], entries, at, findings).values())
    if get_origin(main) is Mapping:
        key_kind, value_kind = get_args(main)
        named = {
            key: entry
            for key, entry in _of_type(value, (Mapping,)).items()
            if _read(key_kind, key, at / key, findings) is not MISSING
        }
        return MappingProxyType(_entries(value_kind, named, at, findings))
    single = _value_kind(main)
    return single.read(_of_type(value, single.types, single.hint), str(at))


def _of_type(value: Any, types: tuple[type, ...], hint: str = "") -> Any:
    """The value; Refused if it has another type. A bool is not an int."""
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise Refused(Code.WRONG_TYPE, hint)
    return value


def _entries(kind: Any, values: Mapping[Any, object], at: KeyPath, findings: Findings) -> dict[Any, object]:
    read = {key: _read(kind, value, at / key, findings) for key, value in values.items()}
    return {key: value for key, value in read.items() if value is not MISSING}


def _section(section: Any, value: object, at: KeyPath, findings: Findings) -> object:
    """The section, with defaults in place of wrong values; MISSING where a value without a default is missing or wrong."""
    known = keys_of(section)
    keys = listed(known, last="and")
    if not isinstance(value, Mapping):
        raise Refused(Code.WRONG_TYPE, f"its keys are {keys}", expected="a dictionary")
    for key in value:
        if key not in known:
            place = findings.places.get(key) if isinstance(key, str) else None
            instead = f" here, it belongs to {place}" if place else suggestion(key, known)
            findings.add(at / key, f"{at / key} is not a setting{instead}", f"the keys of {at} are {keys}", Code.UNKNOWN_KEY)
    attributes = {"name": at.keys[-1]} if hasattr(section, "entry") else {}
    for key, setting in known.items():
        read = _read(setting.type, value[key], at / key, findings) if key in value else MISSING
        if key not in value and setting.default is MISSING:
            message = f"{at / key} is missing, expected {setting.expected}"
            findings.add(at / key, message, f"add the key, or remove {at}", Code.MISSING_KEY)
        attributes[setting.name] = setting.default if read is MISSING else read
    return MISSING if MISSING in attributes.values() else section(**attributes)


def check_combinations(settings: Settings, dialects: Mapping[str, str] | None, findings: Findings) -> None:
    """Report wrong combinations; an endpoint with wrong single values is checked once those are corrected."""
    dialect = _find_dialect(settings.database, dialects, findings)
    for rule in _RULES:
        findings.problems += [found for found in rule(settings, dialect) if not findings.has_error_at(found.key_path)]
    for name, endpoint in settings.endpoints.items():
        at = ROOT / "ENDPOINTS" / name
        if not findings.has_error_at(at):
            findings.problems += [found for rule in _ENDPOINT_RULES for found in rule(endpoint, at, dialect)]


def _find_dialect(alias: str, dialects: Mapping[str, str] | None, findings: Findings) -> str | None:
    at = ROOT / "DATABASE"
    if dialects is None or findings.has_error_at(at):
        return None
    if alias not in dialects:
        message = f"{at} is {alias!r}, expected an alias of DATABASES{suggestion(alias, dialects)}"
        findings.add(at, message, f"the aliases are {listed(dialects, last='and')}", Code.UNKNOWN_ALIAS)
        return None
    try:
        return dialects[alias]
    except ConfigurationError as error:
        message = f"{at} is {alias!r}, but {error}"
        findings.add(at, message, "name an alias of a supported database", Code.UNSUPPORTED_DATABASE)
        return None


def _schemas_and_catalogs_fit_database(settings: Settings, dialect: str | None) -> Iterator[Problem]:
    if dialect in ("postgresql", "sqlite"):
        for key in ("CATALOG_FOR_QUEUE", "CATALOG_FOR_ENDPOINT"):
            if getattr(settings, key.lower()):
                at = ROOT / key
                message = f"{at} is set, but only SQL Server has catalogs and the queues are on {_TITLES[dialect]}"
                yield Problem(at, message, "remove the key", Code.CATALOG_OFF_SQL_SERVER)
    if dialect == "sqlite":
        for key in ("DEFAULT_SCHEMA", "SCHEMA_FOR_QUEUE", "SCHEMA_FOR_ENDPOINT"):
            if value := getattr(settings, key.lower()):
                at = ROOT / key
                given = shown(value if isinstance(value, str) else dict(value))
                message = f"{at} is {given}, but SQLite has no schemas and the queues are on SQLite"
                yield Problem(at, message, "remove the key where the queues are on SQLite", Code.SCHEMA_ON_SQLITE)


def _others_are_not_local(settings: Settings, _: str | None) -> Iterator[Problem]:
    """Settings for other endpoints; NServiceBus also rejects a schema of its own."""
    for kind in ("SCHEMA", "CATALOG"):
        key = f"{kind}_FOR_ENDPOINT"
        for name in getattr(settings, key.lower()):
            if name in settings.senders:
                at = ROOT / key / name
                where = "ENDPOINTS" if name in settings.endpoints else "SEND_AS"
                message = f'{at} names an endpoint of this process (SQLQUEUE["{where}"]), expected another one'
                yield Problem(at, message, f"use {kind}_FOR_QUEUE for its queue", Code.LOCAL_ENDPOINT)
    for number, name in enumerate(settings.priority_endpoints):
        if name in settings.endpoints:
            at = ROOT / "PRIORITY_ENDPOINTS" / number
            message = f'{at} names an endpoint of this process (SQLQUEUE["ENDPOINTS"]), expected another one'
            yield Problem(at, message, "set PRIORITIES of the endpoint to True instead", Code.LOCAL_ENDPOINT)


def _folding(dialect: str | None) -> Callable[[str], str]:
    """PostgreSQL distinguishes names by case; SQLite does not, nor does SQL Server under its usual collations."""
    return str if dialect in (None, "postgresql") else str.casefold


def _queues_are_not_shared(settings: Settings, dialect: str | None) -> Iterator[Problem]:
    """Each table has one purpose: two receivers would take each other's messages, and other tables have other columns."""
    fold = _folding(dialect)
    owners: dict[str, str] = {}
    reported: set[KeyPath] = set()
    for place, queue, owner in _queues(settings):
        first = owners.setdefault(fold(queue), owner)
        if first != owner and place not in reported:
            reported.add(place)
            message = f"{place} uses the queue {queue!r}, which is {first} already"
            yield Problem(place, message, "give each receiver a queue of its own", Code.SHARED_QUEUE)


def _queues(settings: Settings) -> Iterator[tuple[KeyPath, str, str]]:
    """Every table with one purpose: the place that names it, its name, and its owner. Endpoints come first, SEND_AS last."""
    yield ROOT, _SUBSCRIPTION_TABLE, "the subscription table"
    for name in settings.endpoints:
        yield ROOT / "ENDPOINTS" / name, name, f"the queue of endpoint {name!r}"
    for name, endpoint in settings.endpoints.items():
        at = ROOT / "ENDPOINTS" / name
        yield at, f"{name}.Delayed", f"the table of delayed messages of endpoint {name!r}"
        for queue in endpoint.priority_queue_names():
            yield at / "PRIORITIES", queue, f"the queue {queue!r} for a priority of endpoint {name!r}"
        for place, satellite in _satellites(endpoint, at):
            yield place, satellite, f"the satellite {satellite!r} of endpoint {name!r}"
        if endpoint.instance is not None:
            for queue in endpoint.callback_queue_names(endpoint.instance):
                yield at / "INSTANCE", queue, f"a callback queue of endpoint {name!r}"
    if (sender := settings.send_as) is not None and sender not in settings.endpoints:
        yield ROOT / "SEND_AS", sender, "the queue of SEND_AS"
        yield ROOT / "SEND_AS", f"{sender}.Delayed", "the table of delayed messages of SEND_AS"


def _audit_queues_are_not_error_queues(settings: Settings, dialect: str | None) -> Iterator[Problem]:
    """In an error queue, each audited message would be shown as a failed one."""
    fold = _folding(dialect)

    def parts(text: str) -> tuple[str, ...]:
        try:
            address = QueueAddress.parse(text, dialect or "sqlserver")
        except AddressError:
            return ()  # reported by a rule of its endpoint
        return tuple(fold(part or "") for part in (address.table, address.schema, address.catalog))

    errors = {parts(endpoint.error_queue) for endpoint in settings.endpoints.values()} - {()}
    for name, endpoint in settings.endpoints.items():
        if endpoint.audit_queue is not None and parts(endpoint.audit_queue) in errors:
            place = ROOT / "ENDPOINTS" / name / "AUDIT_QUEUE"
            message = f"{place} is {shown(endpoint.audit_queue)}, expected a queue that is not an ERROR_QUEUE"
            yield Problem(place, message, "give it another queue, such as 'audit'", Code.OWN_QUEUE_AS_TARGET)


def _satellites(endpoint: EndpointSettings, at: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    for queue in dict.fromkeys((*endpoint.legacy_satellite_names(), *endpoint.satellites)):
        yield at / "SATELLITES" / queue if queue in endpoint.satellites else at / "LEGACY_SATELLITES", queue


def _names_fit(settings: Settings, dialect: str | None) -> Iterator[Problem]:
    if dialect is None:
        return
    for name, endpoint in settings.endpoints.items():
        at = ROOT / "ENDPOINTS" / name
        levels = [(at / "PRIORITIES", queue) for queue in endpoint.priority_queue_names()]
        for place, queue in [(at, name), *levels, *_satellites(endpoint, at)]:
            try:
                check_name(queue, dialect)
            except AddressError as error:
                hint = "rename it on both sides, NServiceBus has the same limit"
                yield Problem(place, f"{place}: {error}", hint, Code.NAME_TOO_LONG)


def _targets_are_other_queues(settings: Settings, dialect: str | None) -> Iterator[Problem]:
    """A failed message that returned to its own queue would fail forever; other tables have other columns, or hold replies."""
    fold = _folding(dialect)
    others = {fold(f"{name}.Delayed"): f"the table of delayed messages of {name!r}" for name in settings.senders}
    others[fold(_SUBSCRIPTION_TABLE)] = "the subscription table"
    if settings.send_as is not None and settings.send_as not in settings.endpoints:
        others[fold(settings.send_as)] = "the queue of SEND_AS"
    for name, endpoint in settings.endpoints.items():
        own = {fold(queue) for queue in (*endpoint.receiving_queue_names(), f"{name}.Delayed")}
        for key in ("ERROR_QUEUE", "AUDIT_QUEUE", "SERVICE_CONTROL_QUEUE"):
            place, text = ROOT / "ENDPOINTS" / name / key, getattr(endpoint, key.lower())
            try:
                table = "" if text is None else fold(QueueAddress.parse(text, dialect or "sqlserver").table)
            except AddressError as error:
                yield Problem(place, f"{place}: {error}", "write the name of a queue", Code.BAD_ADDRESS)
                continue
            if table in own or table in others:
                wanted = "a queue that the endpoint does not receive from" if table in own else f"a queue, not {others[table]}"
                message = f"{place} is {shown(text)}, expected {wanted}"
                yield Problem(place, message, "give it another queue", Code.OWN_QUEUE_AS_TARGET)


def _fits_transaction_mode(endpoint: EndpointSettings, at: KeyPath, _: str | None) -> Iterator[Problem]:
    """As in NServiceBus, no retries without a transaction; a message remembered before its work might be dropped unhandled."""
    if endpoint.transaction_mode != "none":
        if endpoint.on_failure_without_transaction != "error_queue":
            place = at / "ON_FAILURE_WITHOUT_TRANSACTION"
            message = (
                f"{place} is {endpoint.on_failure_without_transaction!r}, which applies to transaction mode 'none' only, "
                f"and the mode is {endpoint.transaction_mode!r}"
            )
            hint = "remove the key, or set TRANSACTION_MODE to 'none'"
            yield Problem(place, message, hint, Code.FAILURE_WITH_TRANSACTION)
        return
    for key in ("IMMEDIATE_RETRIES", "DELAYED_RETRIES"):
        if (number := getattr(endpoint, key.lower())) > 0:
            message = f"{at / key} is {number}, but in transaction mode 'none' there is nothing to retry"
            hint = "set IMMEDIATE_RETRIES and DELAYED_RETRIES both to 0"
            yield Problem(at / key, message, hint, Code.RETRIES_WITHOUT_TRANSACTION)
    if endpoint.deduplicate_for_seconds:
        place = at / "DEDUPLICATE_FOR"
        message = f"{place} is set, but in transaction mode 'none' there is no transaction in which messages could be remembered"
        yield Problem(place, message, "remove the key, or choose another TRANSACTION_MODE", Code.DEDUPLICATION_WITHOUT_TRANSACTION)


def _limits_fit(endpoint: EndpointSettings, at: KeyPath, _: str | None) -> Iterator[Problem]:
    soft, hard = endpoint.soft_time_limit_seconds, endpoint.hard_time_limit_seconds
    if soft is not None and hard is not None and soft >= hard:
        place = at / "HARD_TIME_LIMIT"
        message = f"{place} is {hard:g} seconds, but SOFT_TIME_LIMIT is {soft:g}: expected a hard limit above the soft one"
        yield Problem(place, message, "raise HARD_TIME_LIMIT, or remove one of them", Code.HARD_LIMIT_FIRST)


def _is_woken_in_time(endpoint: EndpointSettings, at: KeyPath, dialect: str | None) -> Iterator[Problem]:
    """Warnings only: settings shared by production and SQLite for development still work there."""
    if endpoint.peek_delay_seconds > _SLOW_PEEK_SECONDS:
        place = at / "PEEK_DELAY"
        message = f"{place} is {endpoint.peek_delay_seconds:g} seconds: a message may wait that long in an idle queue"
        yield Problem(place, message, f"choose at most {_SLOW_PEEK_SECONDS} seconds", Code.SLOW_PEEK)
    if endpoint.wake_up and dialect == "sqlserver":
        place = at / "WAKE_UP"
        message = f"{place} is True, but the queues are on SQL Server, which cannot wake receivers: they are polled"
        yield Problem(place, message, "remove the key", Code.WAKE_UP_ON_SQLSERVER)


_RULES: Final = (
    _schemas_and_catalogs_fit_database,
    _others_are_not_local,
    _queues_are_not_shared,
    _targets_are_other_queues,
    _audit_queues_are_not_error_queues,
    _names_fit,
)
_ENDPOINT_RULES: Final = (_fits_transaction_mode, _limits_fit, _is_woken_in_time)
