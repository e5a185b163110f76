"""Type introspection for readers and writers of bodies: the members of a message class, generics, TypedDicts and enums."""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import inspect
import operator
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from sqlqueue_app.messages.errors import MessageBodyError, MessageTypeError

AS_IS: Final = "as_is"
"""Members are written under their Python names."""

PASCAL: Final = "pascal_case"
"""Members are written as .NET spells them: ``order_id`` as ``OrderId``."""

NAMES: Final = (AS_IS, PASCAL, "pascal")  # the last is the former name of PASCAL


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a message class.

    ``required`` if it has no default, ``settable`` if the constructor accepts it, ``kept`` if objects have it, unlike an InitVar.
    ``aliases`` are further names by which a model reads it.
    """

    name: str
    hint: Any
    required: bool
    settable: bool = True
    kept: bool = True
    aliases: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Its name, and the aliases."""
        return (self.name, *self.aliases)


def check_mappable(cls: type) -> None:
    """Raise :class:`MessageTypeError`, with a remedy, for a class whose instances cannot be read from a body.

    Supported are dataclasses, TypedDicts, Pydantic models, and classes with annotations whose constructor accepts their names as
    keywords (attrs classes, named tuples and suitable hand-written ones).
    """
    if typing.is_typeddict(cls) or is_model(cls):
        return
    own = set(_annotations(cls))
    if dataclasses.is_dataclass(cls):
        left_out = own - set(cls.__dataclass_fields__) - {name for name in own if _is_marker(_annotations(cls)[name])}
        if left_out:
            raise MessageTypeError(
                f"the class {cls.__qualname__} has annotations that are not dataclass fields ({_listed(left_out)}): "
                "put @dataclass on the class itself, below @message_type"
            )
        return
    differing = _differences(cls)
    if differing is None:
        raise MessageTypeError(
            f"the class {cls.__qualname__} has no annotations, so its members are unknown; "
            "make it a dataclass, with @dataclass below @message_type"
        )
    if differing:
        raise MessageTypeError(
            f"the class {cls.__qualname__} cannot be a message: its constructor and its annotations differ in "
            f"{_listed(differing)}; make it a dataclass, with @dataclass below @message_type"
        )


@lru_cache(maxsize=2048)
def is_mappable(cls: type) -> bool:
    """Whether values of the class are written and read member by member."""
    return dataclasses.is_dataclass(cls) or typing.is_typeddict(cls) or is_model(cls) or _differences(cls) == set()


def mapped_class(hint: Any) -> type | None:
    """The class whose members a bare hint describes: itself, or that of an alias of a generic class; None for another hint."""
    cls = typing.get_origin(hint) or hint
    return cls if isinstance(cls, type) and is_mappable(cls) else None


def is_model(cls: type) -> bool:
    """Whether the class is a Pydantic model; does not import Pydantic."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and issubclass(cls, pydantic.BaseModel)


def keeps_undeclared(cls: Any) -> bool:
    """Whether objects of the class may have members that it does not declare: those of a model with `extra="allow"`."""
    return is_model(cls) and cls.model_config.get("extra") == "allow"


def construct(cls: Any, members: dict[str, Any]) -> Any:
    """Create an instance with these members; errors of the class propagate. Models validate their values, by alias."""
    if not is_model(cls) or cls.__pydantic_root_model__:
        return cls(**members)
    fields = _model_fields(cls)
    return cls.model_validate({next(iter(_aliases(fields[name])), name): value for name, value in members.items()})


def _aliases(field: Any) -> tuple[str, ...]:
    """The names by which a model reads the field in place of its own, without paths."""
    alias = field.validation_alias or field.alias
    return tuple(choice for choice in getattr(alias, "choices", [alias]) if isinstance(choice, str))


@lru_cache(maxsize=2048)
def member_names(cls: type) -> tuple[str, ...]:
    """The names of the members in the order of their declaration, without resolving type hints."""
    if dataclasses.is_dataclass(cls):
        return tuple(field.name for field in dataclasses.fields(cls))
    if is_model(cls):
        return tuple(_model_fields(cls))
    parameters = _parameters(cls)
    annotated = _annotated(cls)
    return tuple(name for name in parameters if name in annotated)


@lru_cache(maxsize=2048)
def members_of(kind: Any) -> tuple[Member, ...]:
    """The members of a class or an alias of a generic class. :class:`MessageTypeError` for a hint that cannot be resolved."""
    cls = typing.get_origin(kind) or kind
    if is_model(cls):
        fields = _model_fields(cls).items()
        return tuple(Member(name, field.annotation, field.is_required(), aliases=_aliases(field)) for name, field in fields)
    try:
        hints = bound_hints(kind)
    except (NameError, AttributeError, TypeError) as error:
        raise MessageTypeError(
            f"the type hints of {cls.__qualname__} cannot be resolved ({error}): name types that its module holds at run time"
        ) from error
    if dataclasses.is_dataclass(cls):
        return _fields_of(cls, hints)
    if typing.is_typeddict(cls):
        return tuple(Member(name, hint, _is_key_required(cls, name, hint)) for name, hint in hints.items())
    check_mappable(cls)
    empty = inspect.Parameter.empty
    parameters = _parameters(cls)
    return tuple(Member(name, hints[name], parameters[name].default is empty) for name in member_names(cls))


def _fields_of(cls: Any, hints: dict[str, Any]) -> tuple[Member, ...]:
    """The fields of a dataclass, then parameters that only its constructor has."""
    fields = {field.name for field in dataclasses.fields(cls)}
    members = [Member(f.name, hints.get(f.name, Any), _is_required(f), f.init) for f in dataclasses.fields(cls)]
    for name, field in cls.__dataclass_fields__.items():
        if name not in fields and isinstance(hint := hints.get(name), dataclasses.InitVar):
            members.append(Member(name, hint.type, _is_required(field), kept=False))
    return tuple(members)


@lru_cache(maxsize=4096)
def pascal(name: str) -> str:
    """``order_id`` → ``OrderId``; a name in Pascal case is unchanged."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_")) or name


def camel(name: str) -> str:
    """``order_id`` → ``orderId``."""
    text = pascal(name)
    return text[:1].lower() + text[1:]


@lru_cache(maxsize=8192)
def folded(name: str) -> str:
    """The common form of all spellings of a name: ``order_id``, ``OrderId``, ``ORDERID`` → ``orderid``."""
    return name.replace("_", "").casefold()


def _model_fields(cls: Any) -> dict[str, Any]:
    return dict(cls.model_fields)


def _is_key_required(cls: Any, name: str, hint: Any) -> bool:
    """Whether a key of a TypedDict is required. Checks its own marker, which Python misses in annotations that are text."""
    while (origin := typing.get_origin(hint)) is not None:
        if origin in (typing.Required, typing.NotRequired):
            return origin is typing.Required
        if origin is not getattr(typing, "ReadOnly", None) and origin is not typing.Annotated:
            break
        hint = typing.get_args(hint)[0]
    return name in cls.__required_keys__


def _differences(cls: type) -> set[str] | None:
    """The names that differ between constructor and annotations; ``None`` for a class without annotations."""
    annotated = _annotated(cls)
    if not annotated:
        return None
    parameters = _parameters(cls)
    required = {name for name, parameter in parameters.items() if parameter.default is inspect.Parameter.empty}
    return (annotated - set(parameters)) | (required - annotated)


def _annotated(cls: type) -> set[str]:
    """The annotated names of the class and its bases, without class variables."""
    return {
        name
        for base in cls.__mro__
        for name, hint in _annotations(base).items()
        if "ClassVar" not in (hint if isinstance(hint, str) else repr(hint)).partition("[")[0]
    }


def _is_marker(hint: Any) -> bool:
    """Whether an annotation only marks the following fields as keyword-only."""
    return hint is dataclasses.KW_ONLY or (isinstance(hint, str) and hint.rpartition(".")[2] == "KW_ONLY")


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _annotations(cls: type) -> dict[str, Any]:
    """The class's own annotations, unresolved: names that exist only for type checkers must not fail here."""
    if sys.version_info >= (3, 14):
        import annotationlib  # noqa: PLC0415 - new in Python 3.14

        return dict(annotationlib.get_annotations(cls, format=annotationlib.Format.FORWARDREF))
    return inspect.get_annotations(cls)


def _parameters(cls: type) -> dict[str, inspect.Parameter]:
    """The constructor's parameters that can be passed by name, without ``*args`` and ``**kwargs``."""
    try:
        signature = inspect.signature(cls)
    except (ValueError, TypeError):
        return {}
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name: parameter for name, parameter in signature.parameters.items() if parameter.kind not in variable}


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names))


ARRAYS: Final = (
    list, tuple, set, frozenset, collections.abc.Sequence, collections.abc.MutableSequence, collections.abc.Collection,
    collections.abc.Iterable, collections.abc.Set, collections.abc.MutableSet,
)  # fmt: skip
# Types that are value types in .NET, not references.
_VALUES: Final = (bool, int, float, Decimal, datetime, date, time, timedelta, UUID)
MAPPINGS: Final = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


_AROUND: Final = (
    typing.Annotated, typing.Final, typing.Required, typing.NotRequired, getattr(typing, "ReadOnly", typing.Required),
)  # fmt: skip


def bare(hint: Any) -> Any:
    """The hint without Annotated, Final, NewType, type aliases and the key markers of a TypedDict."""
    while True:
        if typing.get_origin(hint) in _AROUND:
            hint = typing.get_args(hint)[0]
        elif isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        elif type(hint).__name__ == "TypeAliasType":  # `type X = ...` of 3.12
            hint = hint.__value__
        else:
            return hint


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The bare members of a union and of unions inside it, without None; for another hint, the hint itself."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return tuple(kind for arg in typing.get_args(hint) if arg is not type(None) for kind in alternatives(bare(arg)))
    return (hint,)


def is_optional(hint: Any) -> bool:
    """Whether the hint is a union with None, or with another such union."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return is_union and any(arg is type(None) or is_optional(bare(arg)) for arg in typing.get_args(hint))


def exact_first(kinds: tuple[Any, ...]) -> Callable[[Any], Sequence[int]]:
    """A function that orders the alternatives of a union for a decoded value: the indexes, first those that fit exactly.

    An object goes to a class that knows all its members before one that ignores some; text with a time to datetime before date;
    a whole number to int before float and Decimal, any other number to int last. Otherwise the order of declaration counts.
    """
    declared = tuple(range(len(kinds)))
    at = {kind: index for index, kind in reversed(list(enumerate(kinds))) if isinstance(kind, type)}
    numbers = sorted(at[kind] for kind in (float, Decimal) if kind in at)
    for_whole = _with_first(declared, at.get(int), numbers[0] if numbers else None)
    for_others = _with_first(declared, numbers[0] if numbers else None, at.get(int))
    for_dates = _with_first(declared, at.get(date), at.get(datetime))
    for_times = _with_first(declared, at.get(datetime), at.get(date))

    def order(value: Any) -> Sequence[int]:
        kind = type(value)
        if kind is str:
            return for_times if len(value) > _DATE_LENGTH else for_dates
        if kind is dict:
            names = {folded(name) for name in value if name != "$type"}
            knowing = [index for index in declared if (known := _known_names(kinds[index])) is None or names <= known]
            return [*knowing, *(index for index in declared if index not in knowing)]
        return for_whole if kind is int else for_others if kind in (Decimal, float) else declared

    return order


_DATE_LENGTH: Final = 10


def _with_first(order: tuple[int, ...], wanted: int | None, other: int | None) -> tuple[int, ...]:
    """The order with `wanted` in the place of `other`, if that is earlier."""
    if wanted is None or other is None or wanted < other:
        return order
    return tuple({wanted: other, other: wanted}.get(index, index) for index in order)


def _known_names(kind: Any) -> frozenset[str] | None:
    """The folded names of the members that a type reads from an object; None for all."""
    if mapped_class(kind) is not None:
        return _folded_members(kind)
    if array_items(kind) is not None:
        return frozenset({"$values"})
    return None if (typing.get_origin(kind) or kind) in (*MAPPINGS, Any, object) else frozenset()


@lru_cache(maxsize=2048)
def _folded_members(kind: Any) -> frozenset[str]:
    try:
        return frozenset(folded(name) for member in members_of(kind) for name in member.names)
    except MessageTypeError:
        return frozenset()  # the reader reports it


def admits_none(hint: Any) -> bool:
    """Whether None is a value of the hint: a union or Literal with None, Any, or an unbound type variable."""
    hint = bare(hint)
    if typing.get_origin(hint) in (typing.Union, types.UnionType, typing.Literal):
        return any(map(admits_none, typing.get_args(hint)))
    return hint is None or isinstance(hint, typing.TypeVar) or hint in (Any, object, type(None))


def is_value_type(kind: Any) -> bool:
    """Whether a bare hint is a value type in .NET, not a reference that may be null."""
    return isinstance(kind, type) and (kind in _VALUES or issubclass(kind, Enum))


def array_items(hint: Any) -> list[Any] | None:
    """The hints of the items of a list, set or tuple: the last one applies to all further items; None for another hint."""
    origin = typing.get_origin(hint) or hint
    if origin not in ARRAYS:
        return None
    args = [arg for arg in typing.get_args(hint) if arg is not Ellipsis]
    return args or [Any]


def mapping_items(hint: Any) -> tuple[Any, Any] | None:
    """The hints of keys and values of a mapping with declared types; None for a dict without them and for other hints."""
    args = typing.get_args(hint)
    return (args[0], args[1]) if typing.get_origin(hint) in MAPPINGS and len(args) == 2 else None


_Bound = dict[Any, Any]


def bound_hints(kind: Any) -> dict[str, Any]:
    """The hints of a class, or of an alias such as `Page[Line]`, by name, extras included: `value: T` of `Page[Line]` is a Line.

    An unbound type variable stays unchanged. Raises the errors of `typing.get_type_hints`.
    """
    cls = typing.get_origin(kind) or kind
    hints = typing.get_type_hints(cls, include_extras=True)
    bindings = list(_bindings(cls, typing.get_args(kind)))
    if not any(bound for _, bound in bindings):
        return hints
    if typing.is_typeddict(cls):  # it has no bases at run time
        bound = {variable: value for _, each in bindings for variable, value in each.items()}
        return {name: _substituted(hint, bound) for name, hint in hints.items()}
    found = dict(hints)
    for base in reversed(cls.__mro__):
        bound = {variable: value for owner, each in bindings if owner is base for variable, value in each.items()}
        found.update({name: _substituted(hints[name], bound) for name in inspect.get_annotations(base) if name in hints})
    return found


def _bindings(cls: Any, args: tuple[Any, ...]) -> Iterator[tuple[Any, _Bound]]:
    """The class and its bases, each with the bindings of its type variables."""
    bound = dict(zip(getattr(cls, "__parameters__", ()), args, strict=False))
    yield cls, bound
    for base in getattr(cls, "__orig_bases__", getattr(cls, "__bases__", ())):
        origin = typing.get_origin(base)
        if origin in (typing.Generic, typing.Protocol):
            continue
        yield from _bindings(origin or base, tuple(_substituted(arg, bound) for arg in typing.get_args(base)))


def _substituted(hint: Any, bound: _Bound) -> Any:
    if isinstance(hint, typing.TypeVar):
        return bound.get(hint, hint)
    variables = getattr(hint, "__parameters__", ())
    if not bound or not variables or isinstance(hint, type):
        return hint
    return hint[tuple(bound.get(variable, variable) for variable in variables)]


def pascal_keys(value: Any, hint: Any) -> Any:
    """The value with the keys of TypedDicts as .NET spells them; keys that the hint does not declare stay unchanged.

    MessageBodyError if two keys would become one.
    """
    for kind in alternatives(bare(hint)):
        if isinstance(value, Mapping):
            if typing.is_typeddict(typing.get_origin(kind) or kind):
                return _members(value, {member.name: member.hint for member in members_of(kind)})
            if (pair := mapping_items(kind)) is not None:
                return {key: pascal_keys(item, pair[1]) for key, item in value.items()}
        elif isinstance(value, (list, tuple)) and (items := array_items(kind)) is not None:
            return [pascal_keys(item, items[min(index, len(items) - 1)]) for index, item in enumerate(value)]
    return value


def _members(value: Mapping[Any, Any], hints: dict[str, Any]) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for key, item in value.items():
        name = pascal(key) if key in hints else key
        if name in found:
            raise MessageBodyError(f"two members would both be written as {name!r}; rename one of them")
        found[name] = pascal_keys(item, hints.get(key, Any))
    return found


_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,40}")


def find_member(cls: type[Enum], value: Any) -> Enum | None:
    """Find a member by value, then by name in any case: .NET writes numbers in JSON and names in XML; None if not found.

    Text may also be a number, as in the keys of a dictionary, or comma-separated names of flags, as in .NET.
    """
    found = _of_value(cls, value)
    if found is not None or not isinstance(value, str):
        return found
    text = value.strip()
    found = _of_name(cls, text)
    if found is None and _NUMBER.fullmatch(text):
        found = _of_value(cls, int(text))
    if found is None and "," in text and issubclass(cls, Flag):
        members = [member for name in text.split(",") if isinstance(member := _of_name(cls, name.strip()), Flag)]
        found = functools.reduce(operator.or_, members) if len(members) == text.count(",") + 1 else None
    return found


def _of_value(cls: type[Enum], value: Any) -> Enum | None:
    if value is None or type(value) is bool:
        return None
    try:
        return cls(value)
    except (ValueError, TypeError):  # TypeError: text for a flag, which Python does not convert
        return None


def _of_name(cls: type[Enum], name: str) -> Enum | None:
    members = cls.__members__
    if (exact := members.get(name)) is not None:
        return exact
    wanted = folded(name)
    return next((member for known, member in members.items() if folded(known) == wanted), None)


MIN_BUDGET: Final = 10_000
_LEFT: Final[ContextVar[list[int] | None]] = ContextVar("backtracking_budget", default=None)


@contextmanager
def backtracking_budget(size: int) -> Iterator[None]:
    """A context that limits the failed alternatives to the possible number of values in `size` bytes, at least MIN_BUDGET.

    If the alternatives of a union such as `Node | Leaf` contain unions themselves, each level could double the attempts for a
    short body that fits none. Nested contexts use the budget of the outermost one: several messages of one body share it.
    """
    if _LEFT.get() is not None:
        yield
        return
    token = _LEFT.set([max(MIN_BUDGET, size)])
    try:
        yield
    finally:
        _LEFT.reset(token)


def spend_budget() -> None:
    """Record that an alternative did not fit. MessageBodyError if the budget is exceeded."""
    left = _LEFT.get()
    if left is None:
        return
    left[0] -= 1
    if left[0] < 0:
        raise MessageBodyError(
            "the body partly fits too many alternatives of its type hints and completely fits none: reading was stopped; "
            "make the alternatives differ in their first members, or send a body that fits one of them"
        )
