"""The errors of sqlqueue, one tree, cut by what the caller can do about them."""

from __future__ import annotations

import re
from typing import Final


class SqlQueueError(Exception):
    """Root of all errors that sqlqueue raises on purpose."""


class ConfigurationError(SqlQueueError):
    """Settings or code are wrong; the message names the value, what was expected and what to do."""


class AddressError(ConfigurationError, ValueError):
    """A queue address or a name cannot be used."""


class MessageTypeError(ConfigurationError):
    """A message type is unknown, registered twice, or has no route."""


class HandlerError(ConfigurationError):
    """A handler cannot be registered."""


class CannotPrepare(ConfigurationError):
    """A handler has written to another database, which cannot prepare a transaction: trying again cannot help."""


class WireFormatError(SqlQueueError, ValueError):
    """A row or a body is not what the wire says."""


class PoisonMessage(WireFormatError):
    """The headers of a row cannot be read; the row goes to the error queue as it is."""


class NullHeaders(PoisonMessage):
    """The headers are the JSON ``null``, which stops a receiver of NServiceBus (docs/internals/wire.md#rows-written-by-hand)."""


class MessageBodyError(WireFormatError):
    """The body does not fit its content type or its message type; trying again cannot help."""


class SeveralMessages(MessageBodyError):
    """The body is XML with several messages in one root ``Messages``, which only a worker handles."""


class Unrecoverable(SqlQueueError):
    """Raised by a handler: retries cannot help, the message goes to the error queue at once."""


class ReplyLost(SqlQueueError):
    """A request will get no reply, because its process no longer receives from the callback queue that it named."""


class ProcessDied(SqlQueueError):
    """Processes died while they handled the message: stands in the error queue as its reason, and is never raised."""


class WorkerFailed(SqlQueueError):
    """A worker has stopped because something of ours broke; started again it may work."""


class DatabaseError(SqlQueueError):
    """What the database said, told apart by error code; the driver's error is the cause."""

    remedy = ""
    """What a command prints behind it."""


class QueueNotFound(DatabaseError):
    """The table of a queue does not exist."""

    table: str | None = None
    """Its quoted name, where one table was written to or looked up."""
    queue: str = ""  # its name alone


class TableMismatch(DatabaseError):
    """The table of a queue exists, but its columns are those of no known layout."""


class ConstraintViolation(DatabaseError):
    """A constraint refused the row."""


class PermissionDenied(DatabaseError):
    """The user of the connection lacks a right."""

    remedy = "; give the user the rights that sqlqueue_install --sql --grant ROLE prints"


class TransientError(DatabaseError):
    """The same work may succeed when it is tried again."""


class ConnectionLost(TransientError):
    """The connection is gone, and its transaction with it."""

    remedy = "; start the database, or correct HOST and PORT in DATABASES"


class CannotConnect(ConnectionLost):
    """There is no such database or user, the password is wrong, or a SQLite file cannot be opened or written."""

    remedy = "; correct NAME, USER and PASSWORD in DATABASES, or create the database; a SQLite file and its folder must be writable"


class Deadlock(TransientError):
    """The transaction was the victim of a deadlock and is gone."""


class SerializationFailure(TransientError):
    """The transaction is gone, because another one changed the same rows."""


class LockTimeout(TransientError):
    """A lock was not granted in time."""

    remedy = "; another connection holds a lock: try again when it is done"


class DoomedTransaction(TransientError):
    """The transaction can only be rolled back."""


# Control characters, those that turn the direction of text among them: they would act on the terminal instead of being read.
_UNSAFE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def terminal_text(text: str) -> str:
    """Untrusted text for logs and terminals, with control characters written out as escapes; line breaks and tabs stay."""
    return _UNSAFE.sub(lambda found: f"\\x{ord(found[0]):02x}" if ord(found[0]) < 256 else f"\\u{ord(found[0]):04x}", text)


def terminal_line(text: str) -> str:
    """The same, on one line."""
    return terminal_text(text).replace("\n", "\\n").replace("\t", " ")


def counted(number: int, one: str, several: str = "") -> str:
    """A number with its noun, for logs and commands, which are in English: `1 message`, `2,000 messages`."""
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"


def json_text(text: str) -> str:
    """A JSON text with such characters as escapes of JSON."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
