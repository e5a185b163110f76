"""Kinds of settings that hold others: lists, mappings, and sections, which are dictionaries with known keys.

A wrong entry is reported and left out, the rest is read, so that one run of the checks shows all problems.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, runtime_checkable

from sqlqueue_app.conf.kinds import Kind, Refused, Scalar, refuse
from sqlqueue_app.conf.problems import Code, Findings, KeyPath, Problem, listed, meant, shown_at

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    SectionType = TypeVar("SectionType", bound=DataclassInstance)
else:
    SectionType = TypeVar("SectionType")

_KIND: Final = "kind"


@runtime_checkable
class Container(Kind, Protocol):
    """A kind with entries."""

    def read_into(self, value: object, at: KeyPath, findings: Findings) -> object:
        """Return the value for the attribute without its wrong entries, which are added to `findings`.

        Raises `Refused` where the value as a whole does not fit.
        """


def setting(kind: Scalar | Container) -> dict[str, Scalar | Container]:
    """The metadata of a dataclass field that is read from the settings.

    Its key is the name of the field in upper case, without the ending `_seconds`.
    """
    return {_KIND: kind}


def keys_of(section: type[Any]) -> Mapping[str, Field[Any]]:
    """The keys that a section knows, in the order in which they are documented."""
    return {each.name.removesuffix("_seconds").upper(): each for each in fields(section) if _KIND in each.metadata}


def kind_of(field: Field[Any]) -> Scalar | Container:
    """What a field made with `setting` takes."""
    kind: Scalar | Container = field.metadata[_KIND]
    return kind


def places_of(section: type[Any], at: str = "SQLQUEUE") -> Mapping[str, str]:
    """Where each key of a section and of the sections below it belongs; the highest place wins."""
    known = dict.fromkeys(keys_of(section), at)
    for key, field in keys_of(section).items():
        kind = kind_of(field)
        if isinstance(kind, Sections):
            known = {**places_of(kind.section, f'{at}["{key}"][{kind.entry}]'), **known}
        elif isinstance(kind, Section):
            known = {**places_of(kind.section, f'{at}["{key}"]'), **known}
    return known


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list or tuple of one kind, read as a tuple; None where it is allowed."""

    item: Scalar
    none: bool = False

    @property
    def expected(self) -> str:
        return f"a list, each entry {self.item.expected}" + ("; or None" if self.none else "")

    def read_into(self, value: object, at: KeyPath, findings: Findings) -> object:
        if value is None and self.none:
            return None
        if not isinstance(value, list | tuple):
            raise refuse(self, value, at, Code.WRONG_TYPE)
        return tuple(entry for _, entry in _entries(dict(enumerate(value)), self.item, at, findings))


@dataclass(frozen=True, slots=True)
class MapOf:
    """A dictionary with keys of one kind and values of another, read as a mapping that cannot be changed."""

    key: Scalar
    value: Scalar

    @property
    def expected(self) -> str:
        return f"a dictionary, each key {self.key.expected}, each value {self.value.expected}"

    def read_into(self, value: object, at: KeyPath, findings: Findings) -> object:
        if not isinstance(value, Mapping):
            raise refuse(self, value, at, Code.WRONG_TYPE)
        named = _with_good_keys(value, self.key, at, findings)
        return MappingProxyType(dict(_entries(named, self.value, at, findings)))


@dataclass(frozen=True, slots=True)
class Sections:
    """A dictionary of sections by name; the name becomes the attribute `name` of each."""

    section: type[Any]
    key: Scalar
    entry: str  # what stands for the name where a place is described, such as "endpoint"

    @property
    def expected(self) -> str:
        return f"a dictionary, each key {self.key.expected}, each value a dictionary"

    def read_into(self, value: object, at: KeyPath, findings: Findings) -> object:
        if not isinstance(value, Mapping):
            raise refuse(self, value, at, Code.WRONG_TYPE)
        named = _with_good_keys(value, self.key, at, findings)
        read = {name: read_section(self.section, raw, at / name, findings, name=name) for name, raw in named.items()}
        return MappingProxyType({name: section for name, section in read.items() if section is not None})


@dataclass(frozen=True, slots=True)
class Section:
    """A dictionary with known keys, or None."""

    section: type[Any]
    expected: str = "a dictionary, or None"

    def read_into(self, value: object, at: KeyPath, findings: Findings) -> object:
        return None if value is None else read_section(self.section, value, at, findings)


def read_section(section: type[SectionType], value: object, at: KeyPath, findings: Findings, **given: object) -> SectionType | None:
    """Read a dictionary with known keys; wrong values are reported and replaced by the defaults.

    Returns None where a value that has no default is missing or wrong.
    """
    known = keys_of(section)
    if not isinstance(value, Mapping):
        message = f"{at} is {shown_at(value, at)}, expected a dictionary"
        findings.add(Problem(at, message, f"its keys are {listed(known, last='and')}", Code.WRONG_TYPE))
        return None
    for key in value:
        if key not in known:
            findings.add(_unknown_key(key, tuple(known), at, findings))
    attributes = dict(given)
    complete = True
    for key, field in known.items():
        if key in value:
            for read in _read_or_report(kind_of(field), value[key], at / key, findings):
                attributes[field.name] = read
        elif _is_required(field):
            findings.add(_missing_key(key, field, at))
        complete = complete and (field.name in attributes or not _is_required(field))
    return section(**attributes) if complete else None


def _read_or_report(kind: Scalar | Container, value: object, at: KeyPath, findings: Findings) -> Iterator[object]:
    try:
        if isinstance(kind, Container):
            yield kind.read_into(value, at, findings)
        else:
            yield kind.read(value, at)
    except Refused as refused:
        findings.add(refused.problem)


def _entries(values: Mapping[Any, object], kind: Scalar, at: KeyPath, findings: Findings) -> Iterator[tuple[Any, object]]:
    for key, value in values.items():
        for read in _read_or_report(kind, value, at / key, findings):
            yield key, read


def _with_good_keys(value: Mapping[Any, object], kind: Scalar, at: KeyPath, findings: Findings) -> Mapping[str, object]:
    return {key: entry for key, entry in value.items() for _ in _read_or_report(kind, key, at / key, findings)}


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _unknown_key(key: object, known: tuple[str, ...], at: KeyPath, findings: Findings) -> Problem:
    message = f"{at / key} is not a setting"
    if isinstance(key, str) and key in findings.places:
        message += f" here, it belongs to {findings.places[key]}"
    else:
        message += meant(key, known)
    return Problem(at / key, message, f"the keys of {at} are {listed(known, last='and')}", Code.UNKNOWN_KEY)


def _missing_key(key: str, field: Field[Any], at: KeyPath) -> Problem:
    message = f"{at / key} is missing, expected {kind_of(field).expected}"
    return Problem(at / key, message, f"add the key, or remove {at}", Code.MISSING_KEY)
