"""From the `SQLQUEUE` dictionary to settings and the problems in it: pure, shared by checks and `get_settings`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from sqlqueue_app.conf.containers import places_of, read_section
from sqlqueue_app.conf.not_yet import NOT_YET, NotYet
from sqlqueue_app.conf.problems import Code, Findings, KeyPath, Problem, listed, shown, shown_at
from sqlqueue_app.conf.rules import ROOT, Facts, apply_rules
from sqlqueue_app.conf.values import Settings
from sqlqueue_app.messages.errors import ConfigurationError

_SECONDS: Final = "_seconds"


def settings_problems(
    raw: object,
    *,
    dialects: Mapping[str, str] | None = None,
    not_yet: Mapping[tuple[str, ...], NotYet] = NOT_YET,
) -> list[Problem]:
    """All that is wrong with the dictionary, errors and warnings: single values first, then combinations.

    `dialects` maps the aliases of DATABASES to "sqlserver", "postgresql" or "sqlite"; its `[]` may raise
    ConfigurationError for a database that is not supported. Without it the rules about databases are left out.
    """
    return read_settings(raw, dialects=dialects, not_yet=not_yet)[1]


def read_settings(
    raw: object,
    *,
    dialects: Mapping[str, str] | None = None,
    not_yet: Mapping[tuple[str, ...], NotYet] = NOT_YET,
) -> tuple[Settings, list[Problem]]:
    """The settings with defaults in place of what is wrong, and the problems; use them only if none is an error."""
    findings = Findings(places_of(Settings))
    if not isinstance(raw, Mapping):
        message = f"{ROOT} is {shown_at(raw, ROOT)}, expected a dictionary"
        problem = Problem(ROOT, message, "write SQLQUEUE = {} for the defaults, or remove it", Code.NOT_A_DICTIONARY)
        return Settings(), [problem]
    settings = read_section(Settings, raw, ROOT, findings) or Settings()
    apply_rules(_facts(settings, raw, dialects, not_yet, findings), findings)
    findings.problems.extend(_without_effect(settings, raw, not_yet, findings))
    return settings, findings.problems


def _facts(
    settings: Settings,
    raw: Mapping[object, object],
    dialects: Mapping[str, str] | None,
    not_yet: Mapping[tuple[str, ...], NotYet],
    findings: Findings,
) -> Facts:
    dialect = fault = None
    if dialects is not None and settings.database in dialects and not findings.has_error_at(ROOT / "DATABASE"):
        try:
            dialect = dialects[settings.database]
        except ConfigurationError as error:
            fault = str(error)
    aliases = None if dialects is None else tuple(dialects)
    return Facts(settings, raw, aliases, dialect, fault, not_yet)


def _without_effect(
    settings: Settings, raw: Mapping[object, object], not_yet: Mapping[tuple[str, ...], NotYet], findings: Findings
) -> Iterator[Problem]:
    for (*levels, key), entry in not_yet.items():
        for at, section, given in _sections(settings, raw, levels):
            if key not in given or findings.has_error_at(at / key):
                continue
            value = _attribute(section, key)
            if value not in entry.honoured:
                yield _not_yet_problem(at / key, given[key], entry)


def _sections(
    settings: Settings, raw: Mapping[object, object], levels: list[str]
) -> Iterator[tuple[KeyPath, object, Mapping[object, object]]]:
    """The sections at a level as read and as given: the whole dictionary, or each entry of one of its keys."""
    if not levels:
        yield ROOT, settings, raw
        return
    (level,) = levels
    for name, section in _attribute(settings, level).items():
        yield ROOT / level / name, section, _mapping(_mapping(raw[level])[name])


def _attribute(section: object, key: str) -> Any:
    name = key.lower()
    return getattr(section, name) if hasattr(section, name) else getattr(section, f"{name}{_SECONDS}")


def _mapping(value: object) -> Mapping[object, object]:
    return value if isinstance(value, Mapping) else {}


def _not_yet_problem(at: KeyPath, given: object, entry: NotYet) -> Problem:
    if entry.refused:
        supported = listed(str(value) for value in entry.honoured)
        message = f"{at} is {shown(given)}, but this version supports {supported} only"
        return Problem(at, message, f"set it to {supported}, or remove the key", Code.NOT_SUPPORTED_YET)
    message = f"{at} is {shown(given)}: it is recognised but has no effect in this version"
    return Problem(at, message, "remove the key until a version brings it to life", Code.NO_EFFECT_YET)
