"""The errors of sqlqueue in one tree, grouped by what the caller can do about them."""

from __future__ import annotations

import re
from typing import Final


class SqlQueueError(Exception):
    """The base class of all errors that sqlqueue raises deliberately."""


class ConfigurationError(SqlQueueError):
    """Settings or code are wrong; the message names the value, what was expected and what to do."""


class AddressError(ConfigurationError, ValueError):
    """A queue address or a name cannot be used."""


class MessageTypeError(ConfigurationError):
    """A message type is unknown, registered twice, or has no route."""


class HandlerError(ConfigurationError):
    """A handler cannot be registered."""


class CannotPrepare(ConfigurationError):
    """A handler has written to another database, which cannot prepare a transaction: a retry cannot help."""


class WireFormatError(SqlQueueError, ValueError):
    """A row or a body violates the wire format."""


class PoisonMessage(WireFormatError):
    """The headers of a row cannot be read; the row goes to the error queue unchanged."""


class NullHeaders(PoisonMessage):
    """The headers are the JSON ``null``, which stops a receiver of NServiceBus (docs/internals/wire.md#rows-written-by-hand)."""


class NullBody(PoisonMessage):
    """The body column is NULL, which blocks a real endpoint forever (docs/internals/wire.md#observed-behaviour)."""


class MessageBodyError(WireFormatError):
    """The body does not match its content type or message type; a retry cannot help."""


class BodyNotFound(SqlQueueError):
    """The body of a message is in a file, which the storage does not have."""


class SeveralMessages(MessageBodyError):
    """The body is XML with several messages in one root ``Messages``, which only a worker handles."""


class Unrecoverable(SqlQueueError):
    """Raised by a handler if retries cannot help: the message goes to the error queue immediately."""


class SoftTimeLimitExceeded(SqlQueueError, TimeoutError):
    """Raised in a handler that runs for longer than its soft time limit; it may catch it, clean up and end."""


class ReplyLost(SqlQueueError):
    """A request will get no reply, because its process no longer receives from the callback queue of the request."""


class ProcessDied(SqlQueueError):
    """Processes died while handling the message. Only recorded as the reason in the error queue, never raised."""


class TaskRevoked(SqlQueueError):
    """The message of a Django task was cancelled by `revoke()`. Only recorded as the error of the task, never raised."""


class WorkerFailed(SqlQueueError):
    """A worker stopped because of an internal error; it may work after a restart."""


class DatabaseError(SqlQueueError):
    """An error of the database, classified by error code; the driver's error is the cause."""

    remedy = ""
    """The remedy that a command prints after the message."""


class QueueNotFound(DatabaseError):
    """The table of a queue does not exist."""

    table: str | None = None
    """Its quoted name, if one table was written to or looked up."""
    queue: str = ""  # only its name


class TableMismatch(DatabaseError):
    """The table of a queue exists, but its columns match no known layout."""


class ConstraintViolation(DatabaseError):
    """A constraint rejected the row."""


class PermissionDenied(DatabaseError):
    """The user of the connection lacks a right."""

    remedy = "; give the user the rights that sqlqueue_install --sql --grant ROLE prints"


class TransientError(DatabaseError):
    """The same work may succeed on a retry."""


class ConnectionLost(TransientError):
    """The connection is lost, and its transaction with it."""

    remedy = "; start the database, or correct HOST and PORT in DATABASES"


class CannotConnect(ConnectionLost):
    """There is no such database or user, the password is wrong, or a SQLite file cannot be opened or written."""

    remedy = "; correct NAME, USER and PASSWORD in DATABASES, or create the database; a SQLite file and its folder must be writable"


class Deadlock(TransientError):
    """The transaction was the victim of a deadlock and was rolled back."""


class SerializationFailure(TransientError):
    """The transaction was rolled back, because another one changed the same rows."""


class LockTimeout(TransientError):
    """A lock was not granted in time."""

    remedy = "; another connection holds a lock: try again when it is done"


class DoomedTransaction(TransientError):
    """The transaction can only be rolled back."""


# Control characters, including those that change the text direction: the terminal would obey them instead of showing them.
_UNSAFE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def terminal_text(text: str) -> str:
    """Untrusted text for logs and terminals, with control characters as escapes; line breaks and tabs stay."""
    return _UNSAFE.sub(lambda found: f"\\x{ord(found[0]):02x}" if ord(found[0]) < 256 else f"\\u{ord(found[0]):04x}", text)


def terminal_line(text: str) -> str:
    """Like `terminal_text`, on one line."""
    return terminal_text(text).replace("\n", "\\n").replace("\t", " ")


def counted(number: int, one: str, several: str = "") -> str:
    """A number with its noun, for logs and commands, which are in English: `1 message`, `2,000 messages`."""
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"


def dotted_path(found: object) -> str:
    """The dotted path of a class or function, for errors and logs; of another callable object, that of its class."""
    name = getattr(found, "__qualname__", None) or type(found).__qualname__
    return f"{getattr(found, '__module__', '?')}.{name}"


def json_text(text: str) -> str:
    """A JSON text with control characters as JSON escapes."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
