"""What can be wrong with the settings: ids, places and texts, shared by checks, commands and `get_settings`."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

_SHOWN_CHARACTERS: Final = 120
# What the keys of secrets have in them, also those of Spark and of databases.
_SECRET: Final = re.compile(r"secret|token|passw|pwd|credential|signature|(access|account|api|private)[._-]?key", re.IGNORECASE)
_NEAR_ENOUGH: Final = 0.7


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
    NOT_SUPPORTED_YET = "sqlqueue.E021"
    NAME_TOO_LONG = "sqlqueue.E022"
    DEDUPLICATION_WITHOUT_TRANSACTION = "sqlqueue.E023"
    BAD_NETWORK = "sqlqueue.E024"
    BAD_WEB_ADDRESS = "sqlqueue.E025"
    LAKE_WITH_KEYS = "sqlqueue.E026"
    TASK_QUEUE = "sqlqueue.E040"
    TASKS_WITHOUT_APP = "sqlqueue.E041"
    SLOW_PEEK = "sqlqueue.W001"
    NO_EFFECT_YET = "sqlqueue.W002"
    SQLITE_TRANSACTION_MODE = "sqlqueue.W003"
    WAKE_UP_OFF_POSTGRESQL = "sqlqueue.W004"
    SCHEDULE_WITHOUT_ROUTE = "sqlqueue.W005"


@dataclass(frozen=True, slots=True)
class KeyPath:
    """The place of a value inside of a setting of Django; its text is the expression that reads the value."""

    keys: tuple[object, ...] = ()
    root: str = "SQLQUEUE"

    def __truediv__(self, key: object) -> KeyPath:
        return KeyPath((*self.keys, key), self.root)

    def starts_with(self, other: KeyPath) -> bool:
        """Whether this place is `other` or lies inside of it."""
        return self.root == other.root and self.keys[: len(other.keys)] == other.keys

    def __str__(self) -> str:
        return self.root + "".join(f"[{_key_text(key)}]" for key in self.keys)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with the settings: where, what, what to do, and the id of its check."""

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
    """What one reading of the settings found."""

    places: Mapping[str, str] = field(default_factory=dict)  # key -> the place it belongs to, for keys found elsewhere
    problems: list[Problem] = field(default_factory=list)

    def add(self, problem: Problem) -> None:
        self.problems.append(problem)

    def has_error_at(self, place: KeyPath) -> bool:
        """Whether the value at this place, or one inside of it, was found to be wrong."""
        return any(problem.is_error and problem.key_path.starts_with(place) for problem in self.problems)


def shown(value: object) -> str:
    """`repr(value)`, cut where it would drown the sentence around it."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"


def shown_at(value: object, at: KeyPath) -> str:
    """As `shown`, but for a value that is a secret by its place, or holds one by its own keys: of that the type."""
    keys = [str(key) for key in at.keys[-1:]]
    # A text on its own is what its place says; a list or a dictionary may have keys of its own.
    hidden = any(map(_SECRET.search, keys if isinstance(value, str) else [*keys, repr(value)]))
    return f"a value of {type(value).__name__}" if hidden else shown(value)


def near_miss(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant, whatever its case, or None."""
    by_folded = {candidate.casefold(): candidate for candidate in known}
    found = difflib.get_close_matches(word.casefold(), by_folded, n=1, cutoff=_NEAR_ENOUGH)
    return by_folded[found[0]] if found else None


def meant(word: object, known: Iterable[str]) -> str:
    """The end of a sentence about a wrong word: ": did you mean 'x'?", or nothing."""
    candidate = near_miss(word, known) if isinstance(word, str) else None
    return "" if candidate is None else f": did you mean {candidate!r}?"


def listed(words: Iterable[str], *, last: str = "or") -> str:
    """The words quoted, as prose: "'a', 'b' or 'c'"."""
    quoted = [repr(word) for word in words]
    if len(quoted) < 2:
        return "".join(quoted)
    return f"{', '.join(quoted[:-1])} {last} {quoted[-1]}"


def _key_text(key: object) -> str:
    return json.dumps(key, ensure_ascii=False) if isinstance(key, str) else shown(key)
