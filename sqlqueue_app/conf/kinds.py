"""Kinds of single values in the settings: each refuses what it does not take and turns the rest into its attribute."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import Final, Protocol
from urllib.parse import urlsplit

from sqlqueue_app.conf.crontab import cron_fault
from sqlqueue_app.conf.problems import Code, KeyPath, Problem, listed, meant, shown, shown_at
from sqlqueue_app.messages.errors import AddressError
from sqlqueue_app.messages.identifiers import check_queue_name

# Longer waits overflow the clocks of some platforms, and nobody means them.
MOST_SECONDS: Final = 10 * 366 * 86_400
_WEB_ADDRESS: Final = re.compile(
    r"https?://[\w.-]+(:[0-9]{1,5})?(/[^\s?#\\]*)?|https?://\[[0-9A-Fa-f:.]+\](:[0-9]{1,5})?(/[^\s?#\\]*)?"
)
_HOST_PATTERN: Final = re.compile(r"(\*\.)?[\w-]+(\.[\w-]+)*\.?|\[?[0-9A-Fa-f:.]+\]?")
_DOTTED_PATH: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


class Refused(Exception):
    """A value does not fit; carries the problem to report."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class Kind(Protocol):
    """What a setting takes."""

    @property
    def expected(self) -> str:
        """What fits, as the end of "expected …"; also the type column of docs/reference/settings.md."""


class Scalar(Kind, Protocol):
    """A kind without entries."""

    def read(self, value: object, at: KeyPath) -> object:
        """Return the value for the attribute; raises `Refused` where it does not fit."""


def refuse(kind: Kind, value: object, at: KeyPath, code: Code, hint: str | None = None) -> Refused:
    """The refusal of a value that is not what the kind expects."""
    return Refused(
        Problem(
            at,
            f"{at} is {shown_at(value, at)}, expected {kind.expected}",
            hint or "change the value, or remove the key to get the default",
            code,
        )
    )


@dataclass(frozen=True, slots=True)
class Flag:
    """True or False, and nothing that merely is true."""

    expected: str = "True or False"

    def read(self, value: object, at: KeyPath) -> object:
        if not isinstance(value, bool):
            raise refuse(self, value, at, Code.WRONG_TYPE)
        return value


@dataclass(frozen=True, slots=True)
class Whole:
    """An integer of at least `least`; None or one word where they are allowed."""

    least: int
    none: bool = False
    word: str | None = None

    @property
    def expected(self) -> str:
        others = ", or None" if self.none else f", or {self.word!r}" if self.word else ""
        return f"an integer of at least {self.least}{others}"

    def read(self, value: object, at: KeyPath) -> object:
        if (value is None and self.none) or (self.word is not None and value == self.word):
            return value
        if isinstance(value, bool) or not isinstance(value, int):
            raise refuse(self, value, at, Code.WRONG_TYPE)
        if value < self.least:
            raise refuse(self, value, at, Code.OUT_OF_RANGE)
        return value


@dataclass(frozen=True, slots=True)
class Seconds:
    """A duration: int or float seconds or a `timedelta`, read as float seconds."""

    least: float = 0
    none: bool = False

    @property
    def expected(self) -> str:
        return f"seconds (int, float or timedelta) of at least {self.least}" + (", or None" if self.none else "")

    def read(self, value: object, at: KeyPath) -> object:
        if value is None and self.none:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float | timedelta):
            raise refuse(self, value, at, Code.WRONG_TYPE)
        try:
            seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
        except OverflowError:
            seconds = math.inf
        if seconds < self.least or math.isnan(seconds):
            raise refuse(self, value, at, Code.OUT_OF_RANGE)
        if seconds > MOST_SECONDS:
            raise Refused(
                Problem(
                    at,
                    f"{at} is {shown(value)}, expected at most {MOST_SECONDS} seconds",
                    "give seconds, not milliseconds",
                    Code.OUT_OF_RANGE,
                )
            )
        return seconds


@dataclass(frozen=True, slots=True)
class Word:
    """One of a few words."""

    words: tuple[str, ...]

    @property
    def expected(self) -> str:
        return listed(self.words)

    def read(self, value: object, at: KeyPath) -> object:
        if not isinstance(value, str):
            raise refuse(self, value, at, Code.WRONG_TYPE)
        if value not in self.words:
            message = f"{at} is {shown(value)}, expected {self.expected}{meant(value, self.words)}"
            raise Refused(Problem(at, message, "write one of the words as shown, in lower case", Code.UNKNOWN_WORD))
        return value


@dataclass(frozen=True, slots=True)
class Text:
    """A string that is not blank; None where it is allowed."""

    expected_text: str = "a string that is not blank"
    none: bool = False

    @property
    def expected(self) -> str:
        return self.expected_text + (", or None" if self.none else "")

    def read(self, value: object, at: KeyPath) -> object:
        if value is None and self.none:
            return None
        if not isinstance(value, str):
            raise refuse(self, value, at, Code.WRONG_TYPE)
        if not value.strip():
            raise refuse(self, value, at, Code.BAD_NAME)
        return value


@dataclass(frozen=True, slots=True)
class Secret:
    """A string that travels in a header; None where it is allowed. No message shows it."""

    none: bool = False

    @property
    def expected(self) -> str:
        return "a string without blanks" + (", or None" if self.none else "")

    def read(self, value: object, at: KeyPath) -> object:
        if value is None and self.none:
            return None
        hint = "take one that nobody can guess, such as from secrets.token_urlsafe()"
        if not isinstance(value, str):
            raise Refused(
                Problem(at, f"{at} is a value of {type(value).__name__}, expected {self.expected}", hint, Code.WRONG_TYPE)
            )
        if not value or any(character.isspace() or not character.isprintable() for character in value):
            raise Refused(Problem(at, f"{at} is blank or has blanks in it, expected {self.expected}", hint, Code.BAD_NAME))
        return value


def has_password(url: str) -> bool:
    """Whether a URL holds a password, which would then stand in every row and message that names the URL."""
    try:
        return urlsplit(url).password is not None
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class LakePlace(Text):
    """A folder, or a URL without a password."""

    expected_text: str = "a folder, or a URL that Spark can write"

    def read(self, value: object, at: KeyPath) -> object:
        if isinstance(value, str) and has_password(value):
            hint = "give the keys of the store to Spark, as spark.hadoop.fs.s3a.secret.key in SPARK, or by the environment"
            raise Refused(Problem(at, f"{at} holds a password, expected {self.expected}", hint, Code.LAKE_WITH_KEYS))
        return Text.read(self, value, at)


@dataclass(frozen=True, slots=True)
class Network:
    """An IP network or a single address."""

    expected: str = "an IP network such as '10.0.0.0/8'"

    def read(self, value: object, at: KeyPath) -> object:
        if not isinstance(value, str):
            raise refuse(self, value, at, Code.WRONG_TYPE)
        try:
            ipaddress.ip_network(value)
        except ValueError as error:
            raise Refused(
                Problem(at, f"{at} is {shown(value)}, expected {self.expected}", f"mend it: {error}", Code.BAD_NETWORK)
            ) from error
        return value


@dataclass(frozen=True, slots=True)
class WebAddress:
    """The address of a site, or of a part of it, without a query."""

    none: bool = False

    @property
    def expected(self) -> str:
        return "an address such as 'https://ops.example.com/admin/'" + (", or None" if self.none else "")

    def read(self, value: object, at: KeyPath) -> object:
        if value is None and self.none:
            return None
        if not isinstance(value, str):
            raise refuse(self, value, at, Code.WRONG_TYPE)
        if not _WEB_ADDRESS.fullmatch(value):
            hint = "begin with http:// or https://, and leave out a user, a query and blanks"
            raise refuse(self, value, at, Code.BAD_WEB_ADDRESS, hint)
        return value


@dataclass(frozen=True, slots=True)
class HostPattern:
    """The name of a host, or `*.` and a domain for all hosts below it."""

    expected: str = "the name of a host such as 'hooks.example.com' or '*.example.com'"

    def read(self, value: object, at: KeyPath) -> object:
        if not isinstance(value, str):
            raise refuse(self, value, at, Code.WRONG_TYPE)
        if not _HOST_PATTERN.fullmatch(value):
            raise refuse(self, value, at, Code.BAD_PATTERN, "leave out the scheme, the port and the path")
        return value.lower()


@dataclass(frozen=True, slots=True)
class QueueName:
    """The literal name of an endpoint, an instance or a queue: no address, so never with '@'."""

    none: bool = False

    @property
    def expected(self) -> str:
        return "a name without '@'" + (", or None" if self.none else "")

    def read(self, value: object, at: KeyPath) -> object:
        if value is None and self.none:
            return None
        if not isinstance(value, str):
            raise refuse(self, value, at, Code.WRONG_TYPE)
        try:
            check_queue_name(value, str(at))
        except AddressError as error:
            raise Refused(Problem(at, str(error), "names are literal here, not addresses", Code.BAD_NAME)) from error
        return value


@dataclass(frozen=True, slots=True)
class TypePattern:
    """The full name of a message type, or `Namespace.*` for all types below a namespace."""

    expected: str = "the full name of a message type, or 'Namespace.*'"

    def read(self, value: object, at: KeyPath) -> object:
        if not isinstance(value, str):
            raise refuse(self, value, at, Code.WRONG_TYPE)
        name = value.removesuffix(".*")
        if not name or name != name.strip() or "*" in name or name.startswith(".") or name.endswith("."):
            hint = "'*' may stand at the end only, after a namespace and a dot"
            raise refuse(self, value, at, Code.BAD_PATTERN, hint)
        if "," in name and "[" not in name:
            hint = f"leave the assembly out: {name.split(',')[0].strip()!r}"
            raise refuse(self, value, at, Code.BAD_PATTERN, hint)
        return value


@dataclass(frozen=True, slots=True)
class QueuePattern:
    """The name or address of a queue, in which `*` stands for any characters."""

    expected: str = "a queue name or address, in which '*' stands for any characters"

    def read(self, value: object, at: KeyPath) -> object:
        if not isinstance(value, str):
            raise refuse(self, value, at, Code.WRONG_TYPE)
        if not value.strip() or value != value.strip():
            raise refuse(self, value, at, Code.BAD_PATTERN, "remove the entry, or the blanks around it")
        return value


@dataclass(frozen=True, slots=True)
class DottedPath:
    """Where Python finds a module, function or class."""

    none: bool = False
    callables: bool = False

    @property
    def expected(self) -> str:
        others = ", or None" if self.none else ", or a callable" if self.callables else ""
        return f"a dotted path such as 'shop.sales.handlers'{others}"

    def read(self, value: object, at: KeyPath) -> object:
        if (value is None and self.none) or (self.callables and callable(value)):
            return value
        if not isinstance(value, str):
            raise refuse(self, value, at, Code.WRONG_TYPE)
        if not _DOTTED_PATH.fullmatch(value):
            raise refuse(self, value, at, Code.BAD_DOTTED_PATH, "write it as in an import statement, without '.py'")
        return value


@dataclass(frozen=True, slots=True)
class CronLine:
    """The five fields of a crontab line."""

    none: bool = False

    @property
    def expected(self) -> str:
        return "a crontab line of five fields" + (", or None" if self.none else "")

    def read(self, value: object, at: KeyPath) -> object:
        if value is None and self.none:
            return None
        if not isinstance(value, str):
            raise refuse(self, value, at, Code.WRONG_TYPE)
        fault = cron_fault(value)
        if fault is not None:
            hint = "for example '0 2 * * *' for two o'clock every night; 0 and 7 are Sunday"
            raise Refused(Problem(at, f"{at} is {shown(value)}, {fault}", hint, Code.BAD_CRON))
        return value


@dataclass(frozen=True, slots=True)
class JsonObject:
    """The body of a message as a dictionary with string keys."""

    expected: str = "a dictionary with string keys"

    def read(self, value: object, at: KeyPath) -> object:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise refuse(self, value, at, Code.WRONG_TYPE)
        return MappingProxyType(dict(value))
