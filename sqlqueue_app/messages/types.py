"""Message types: the names of message classes on the wire, and the text of EnclosedMessageTypes.

The process has one registry, which the decorator :func:`message_type` fills while modules are imported. Registration is not
thread-safe; look-ups are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlqueue_app.messages.errors import MessageTypeError, dotted_path
from sqlqueue_app.messages.type_hints import NAMES, check_mappable

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Body = Mapping[Any, Any] | DataclassInstance | None
else:
    Body = object  # accepted by sending functions together with the name of a type

_Class = TypeVar("_Class", bound=type)

# Characters that would end a name in EnclosedMessageTypes or be stripped from its ends.
_NAME: Final = re.compile(r"[^\s,;\x00-\x1f](?:[^,;\x00-\x1f]*[^\s,;\x00-\x1f])?")
_ARGUMENTS: Final = re.compile(r"\[[^;\x00-\x1f]*\]")
SURROGATE: Final = re.compile("[\ud800-\udfff]")
_ASSEMBLY: Final = re.compile(r"[^\s;\x00-\x1f](?:[^;\x00-\x1f]*[^\s;\x00-\x1f])?")


@dataclass(frozen=True, slots=True)
class MessageType:
    """A registered class: its name on the wire, its .NET assembly if known, the spelling of its members if given."""

    name: str
    cls: type
    assembly: str | None = None
    names: str | None = None

    @property
    def enclosed(self) -> str:
        """The entry in EnclosedMessageTypes (docs/internals/wire.md#message-types): ``Name, Assembly`` resolves everywhere."""
        return f"{self.name}, {self.assembly}" if self.assembly else self.name


class MessageTypes:
    """A registry of message types; the process has one, :data:`registry`."""

    def __init__(self) -> None:
        self._by_name: dict[str, MessageType] = {}
        self._by_class: dict[type, MessageType] = {}
        self.version = 0
        """Grows with each registration, so that data derived from the registry can be detected as outdated."""

    def add(self, found: MessageType) -> None:
        """Register a type. Raises :class:`MessageTypeError` if the name or class is already registered differently.

        The same class imported again (same module, same qualified name) replaces its former version.
        """
        name = plain_name(found.name)
        other = self._by_name.get(name)
        if other is not None and dotted_path(other.cls) != dotted_path(found.cls):
            raise MessageTypeError(
                f"the message type {found.name!r} is registered twice: for {dotted_path(other.cls)} and for "
                f"{dotted_path(found.cls)}; give one of them another name"
            )
        former = self._by_class.get(found.cls)
        if former is not None and former.name != found.name:
            raise MessageTypeError(
                f"the class {dotted_path(found.cls)} is registered as {former.name!r} already; it cannot be {found.name!r} too"
            )
        self._by_name[name] = found
        self._by_class[found.cls] = found
        self.version += 1

    def by_name(self, name: str) -> MessageType | None:
        """The type with exactly this name, or ``None``; the assemblies of type arguments are ignored."""
        return self._by_name.get(name if "[" not in name else plain_name(name))

    def of(self, message: object) -> MessageType:
        """The type of a message or message class. Raises :class:`MessageTypeError` if it is not registered."""
        cls = message if isinstance(message, type) else type(message)
        found = self._by_class.get(cls)
        if found is None:
            raise MessageTypeError(
                f"the class {dotted_path(cls)} is not a message type; "
                f'decorate it with @message_type("Namespace.{cls.__name__}"), or send a type name and a dict'
            )
        return found

    def names(self) -> list[str]:
        """All registered names, sorted."""
        return sorted(found.name for found in self._by_name.values())

    def enclosed(self, message: object) -> str:
        """EnclosedMessageTypes for a message or its class: the type itself, then its registered bases."""
        found = self.of(message)
        bases = (self._by_class.get(base) for base in found.cls.__mro__[1:])
        return ";".join(entry.enclosed for entry in (found, *bases) if entry is not None)


registry: Final = MessageTypes()
"""The message types of this process."""


def message_type(name: str, *, assembly: str | None = None, names: str | None = None) -> Callable[[_Class], _Class]:
    """Register a class as the message type ``name``, above ``@dataclass``.

    ``name`` is the .NET full name if there is one (``Shop.Messages.PlaceOrder``); ``assembly`` is the .NET assembly, with which
    every receiver can resolve the type. ``names="pascal_case"`` writes members as .NET spells them, ``"as_is"`` unchanged; the
    default is the setting ``BODY_NAMES``. Raises :class:`MessageTypeError` for a name that is taken, a name with ``,`` or ``;``,
    and a class that cannot be read from a body.
    """
    _check(name, assembly, names)

    def register(cls: _Class) -> _Class:
        if not isinstance(cls, type):
            raise MessageTypeError(f"@message_type({name!r}) decorates a class, got {cls!r}")
        check_mappable(cls)
        registry.add(MessageType(name, cls, assembly, names))
        return cls

    return register


def resolve_enclosed(text: str | None) -> list[str]:
    """The plain type names in the text of EnclosedMessageTypes, in order; the caller skips unknown ones.

    Each entry is cut at its first comma outside brackets (`plain_name`), as in core 8 and later; entries with ``__impl`` (proxies
    that .NET generates for interfaces) are omitted.
    """
    names = (plain_name(entry) for entry in (text or "").split(";") if "__impl" not in entry)
    return [name for name in names if name]


def name_fault(text: str) -> str:
    """What is wrong with a text as the name of one type, after which an assembly may follow; "" if nothing is."""
    if not text.strip():
        return "is blank"
    if not resolve_enclosed(text):
        return "names no type"
    if ";" in text:
        return "names several types"
    return "contains half of a surrogate pair" if has_half_pair(text) else ""


def has_half_pair(text: str | None) -> bool:
    """Whether a text contains half of a surrogate pair, which no database stores."""
    return text is not None and not text.isascii() and SURROGATE.search(text) is not None


def topics_of(text: str | None) -> tuple[str, ...]:
    """The topics by which subscribers of an event are found, for its text of EnclosedMessageTypes, in order, each once.

    The topic of a type is its .NET full name. Subscribers may also omit the assemblies of its type arguments.
    """
    if "[" not in (text or ""):
        return tuple(dict.fromkeys(resolve_enclosed(text)))
    entries = [entry for entry in (text or "").split(";") if "__impl" not in entry]
    found = (name for entry in entries for name in (full_name(entry), plain_name(entry)))
    return tuple(dict.fromkeys(name for name in found if name))


def full_name(text: str) -> str:
    """The full name of a type without its assembly, as `Type.FullName` of .NET: its type arguments keep theirs.

    ``Shop.Envelope`1[[Shop.Order, Shop, Version=1.0.0.0]], Core`` → ``Shop.Envelope`1[[Shop.Order, Shop, Version=1.0.0.0]]``.
    """
    if "[" not in text:
        return text.partition(",")[0].strip()
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            return text[:place].strip()
    return text.strip()


def plain_name(text: str) -> str:
    """The full name of a type without its assembly, its type arguments without theirs.

    ``Shop.Envelope`1[[Shop.Order, Shop, Version=1.0.0.0]], Core`` → ``Shop.Envelope`1[[Shop.Order]]``.
    """
    if "[" not in text:
        return text.partition(",")[0].strip()
    kept: list[str] = []
    depth = 0
    is_assembly = False
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter in "[]":
            is_assembly = False
        elif letter == "," and depth % 2 == 0:  # an argument is in two brackets
            if depth == 0:
                break
            is_assembly = True
        if not is_assembly and not (depth and letter.isspace()):
            kept.append(letter)
    return "".join(kept).strip()


def _check(name: object, assembly: object, names: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(_ARGUMENTS.sub("", name)):
        raise MessageTypeError(
            f"the message type name {name!r} cannot be used; expected text like 'Sales.PlaceOrder', without ',' and ';'"
        )
    if assembly is not None and (not isinstance(assembly, str) or not _ASSEMBLY.fullmatch(assembly)):
        raise MessageTypeError(f"the assembly {assembly!r} of {name!r} cannot be used; expected text like 'Shop.Messages'")
    if names is not None and names not in NAMES:
        raise MessageTypeError(f"names={names!r} of {name!r} is unknown; expected one of {', '.join(NAMES)}, or None")
