"""The kinds of single values in the settings, as types for the fields of a section."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from django.utils.module_loading import import_string

from sqlqueue_app.conf.crontab import cron_fault
from sqlqueue_app.conf.validation import Code, Refused, ValueKind
from sqlqueue_app.messages.addresses import check_characters, check_queue_name
from sqlqueue_app.messages.errors import AddressError, ConfigurationError, MessageBodyError
from sqlqueue_app.messages.serializers import serialize
from sqlqueue_app.policies.rates import EXPECTED, Rate
from sqlqueue_app.policies.recoverability import Retry

# Longer waits overflow the clocks of some platforms, and are never intended.
_MAX_SECONDS: Final = 10 * 366 * 86_400
# The largest integer in each place where a database takes one, such as TOP on SQL Server.
MAX_INTEGER: Final = 2**31 - 1
# No machine runs more threads or processes.
MAX_PARALLEL: Final = 10_000
MAX_MEMORY: Final = 2**63 - 1
_UNGUESSABLE: Final = "use an unguessable one, such as one from secrets.token_urlsafe()"
_WEB_ADDRESS: Final = re.compile(
    r"https?://[\w.-]+(:[0-9]{1,5})?(/[^\s?#\\]*)?|https?://\[[0-9A-Fa-f:.]+\](:[0-9]{1,5})?(/[^\s?#\\]*)?"
)
_HOST_PATTERN: Final = re.compile(r"(\*\.)?[\w-]+(\.[\w-]+)*\.?|\[?[0-9A-Fa-f:.]+\]?")
_DOTTED_PATH: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def required(holds: Callable[[Any], object], code: Code, hint: str = "", *, seen: str = "") -> Callable[[Any, str], Any]:
    """A reader that returns a value unchanged, and refuses one that does not meet the condition."""

    def read(value: object, _: str) -> object:
        if not holds(value):
            raise Refused(code, hint, seen=seen)
        return value

    return read


def integer(least: int, greatest: int = MAX_INTEGER) -> ValueKind:
    """An integer from `least` to `greatest`, both included."""
    expected = f"an integer of at least {least} and at most {greatest}"
    return ValueKind(expected, (int,), required(lambda value: least <= value <= greatest, Code.OUT_OF_RANGE))


def seconds(least: float = 0) -> ValueKind:
    """A duration of at least `least` seconds, read as float seconds."""

    def read(value: float | timedelta, _: str) -> float:
        try:
            duration = value.total_seconds() if isinstance(value, timedelta) else float(value)
        except OverflowError:
            duration = math.inf
        if duration < least or math.isnan(duration):
            raise Refused(Code.OUT_OF_RANGE)
        if duration > _MAX_SECONDS:
            raise Refused(Code.OUT_OF_RANGE, "give seconds, not milliseconds", expected=f"at most {_MAX_SECONDS} seconds")
        return duration

    return ValueKind(f"seconds (int, float or timedelta) of at least {least}", (int, float, timedelta), read)


def text(expected: str, longest: int | None = None) -> ValueKind:
    """A string that is not blank, and that a database can store; of at most `longest` characters."""
    if longest is None:
        return ValueKind(expected, read=_not_blank)
    fits = required(lambda value: _is_text(value) and len(value) <= longest, Code.BAD_NAME)
    return ValueKind(f"{expected}, of at most {longest} characters", read=fits)


def has_password(url: str) -> bool:
    """Whether a URL contains a password, which would then be in every row and message that names the URL."""
    try:
        return urlsplit(url).password is not None
    except ValueError:
        return False


def _is_text(value: str) -> bool:
    try:
        check_characters(value)
    except AddressError:
        return False
    return bool(value.strip())


_not_blank: Final = required(_is_text, Code.BAD_NAME)
_host: Final = required(_HOST_PATTERN.fullmatch, Code.BAD_PATTERN, "leave out the scheme, the port and the path")


def _lake_place(value: str, place: str) -> object:
    if has_password(value):
        hint = "give the keys of the store to Spark, as spark.hadoop.fs.s3a.secret.key in SPARK, or in the environment"
        raise Refused(Code.LAKE_WITH_KEYS, hint, seen="holds a password")
    return _not_blank(value, place)


def _network(value: str, _: str) -> str:
    try:
        ipaddress.ip_network(value)
    except ValueError as error:
        raise Refused(Code.BAD_NETWORK, f"correct it: {error}") from error
    return value


def _queue_name(value: str, place: str) -> str:
    try:
        check_queue_name(value, place)
    except AddressError as error:
        raise Refused(Code.BAD_NAME, "names are literal here, not addresses", message=str(error)) from error
    return _unpadded(value)


def _address(value: str, place: str) -> str:
    _not_blank(value, place)
    return _unpadded(value)


def _unpadded(value: str) -> str:
    # Readers of addresses in headers ignore blanks around them.
    if value != value.strip():
        raise Refused(Code.BAD_NAME, "remove the blanks", expected="a name without blanks around it")
    return value


def _type_pattern(value: str, _: str) -> str:
    name = value.removesuffix(".*")
    if not name or name != name.strip() or "*" in name or name.startswith(".") or name.endswith("."):
        raise Refused(Code.BAD_PATTERN, "'*' is allowed only at the end, after a namespace and a dot")
    if "," in name and "[" not in name:
        raise Refused(Code.BAD_PATTERN, f"leave the assembly out: {name.split(',')[0].strip()!r}")
    return value


def _cron_line(value: str, _: str) -> str:
    if (fault := cron_fault(value)) is not None:
        hint = "for example '0 2 * * *' for two o'clock every night; 0 and 7 are Sunday"
        raise Refused(Code.BAD_CRON, hint, expected=fault)
    return value


def _json_object(value: Mapping[object, object], _: str) -> Mapping[object, object]:
    if not all(isinstance(key, str) for key in value):
        raise Refused(Code.WRONG_TYPE)
    try:
        serialize(dict(value))
    except MessageBodyError as error:
        raise Refused(Code.WRONG_TYPE, f"correct the value: {error}", expected="a body that can be sent") from error
    return MappingProxyType(dict(value))


def _rate(value: str, _: str) -> Rate:
    try:
        return Rate.parse(value)
    except ValueError as error:
        raise Refused(Code.BAD_RATE) from error


_secret: Final = required(
    # Servers read headers as Latin-1, clients write them as UTF-8.
    lambda value: value and value.isascii() and value.isprintable() and " " not in value,
    Code.BAD_NAME,
    _UNGUESSABLE,
    seen="is blank, or has blanks or characters other than ASCII in it",
)
_queue_pattern: Final = required(
    lambda value: value.strip() and value == value.strip(), Code.BAD_PATTERN, "remove the entry, or the blanks around it"
)
_dotted_path: Final = required(_DOTTED_PATH.fullmatch, Code.BAD_DOTTED_PATH, "write it as in an import statement, without '.py'")
_web_address: Final = required(
    _WEB_ADDRESS.fullmatch, Code.BAD_WEB_ADDRESS, "begin with http:// or https://, and leave out a user, a query and blanks"
)

Flag = Annotated[bool, ValueKind("True or False", (bool,))]
Count = Annotated[int, integer(1)]
CountOrZero = Annotated[int, integer(0)]
ParallelCount = Annotated[int, integer(1, MAX_PARALLEL)]
Seconds = Annotated[float, seconds()]
Text = Annotated[str, text("a string that is not blank")]
Address = Annotated[str, ValueKind("the address of a queue", read=_address)]
SchemaName = Annotated[str, text("the name of a schema")]
CatalogName = Annotated[str, text("the name of a database")]
# The literal name of an endpoint, an instance or a queue, not an address.
QueueName = Annotated[str, ValueKind("a name without '@'", read=_queue_name)]
QueuePattern = Annotated[str, ValueKind("a queue name or address, in which '*' stands for any characters", read=_queue_pattern)]
TypePattern = Annotated[str, ValueKind("the full name of a message type, or 'Namespace.*'", read=_type_pattern)]
DottedPath = Annotated[str, ValueKind("a dotted path such as 'shop.sales.handlers'", read=_dotted_path)]
CronLine = Annotated[str, ValueKind("a crontab line of five fields", read=_cron_line)]
JsonObject = Annotated[Mapping[str, object], ValueKind("a dictionary with string keys", (Mapping,), _json_object)]
# Sent in a header, and shown in no error message.
Secret = Annotated[str, ValueKind("an ASCII string without blanks", read=_secret, hint=_UNGUESSABLE)]
Network = Annotated[str, ValueKind("an IP network such as '10.0.0.0/8'", read=_network)]
WebAddress = Annotated[str, ValueKind("an address such as 'https://ops.example.com/admin/'", read=_web_address)]
HostPattern = Annotated[
    str,
    ValueKind(
        "the name of a host such as 'hooks.example.com' or '*.example.com'", read=lambda value, place: _host(value, place).lower()
    ),
]
RateText = Annotated[Rate, ValueKind(EXPECTED, read=_rate)]
RetryRule = Annotated[Retry, ValueKind("a sqlqueue_app.Retry", (Retry,))]
LakePlace = Annotated[str, ValueKind("a folder, or a URL that Spark can write", read=_lake_place)]


def load_callable(found: str | Callable[..., Any], *, setting: str) -> Callable[..., Any]:
    """The callable of a dotted path, or the callable itself; ConfigurationError that names the setting if there is none."""
    if callable(found):
        return found
    try:
        loaded = import_string(found)
    except ImportError as error:
        raise ConfigurationError(f"{setting} names {found!r}, which cannot be imported: {error}") from error
    if not callable(loaded):
        raise ConfigurationError(f"{setting} names {found!r}, which is {type(loaded).__name__}: expected a function")
    return loaded  # type: ignore[no-any-return]
