"""Keys of messages, `@handles(…, key=…)`: messages with the same key are handled one at a time, in all processes of the endpoint.

Computes keys and the number of the database lock of each, which `tables/key_window.py` and `tables/keyed_receive.py` use.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any, Final

from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.envelope import IncomingMessage
from sqlqueue_app.messages.errors import ConfigurationError, HandlerError
from sqlqueue_app.policies.recoverability import TransactionMode
from sqlqueue_app.receiving.handlers import Handler, HandlerTable
from sqlqueue_app.receiving.processing import read_message
from sqlqueue_app.sending.claim_checks import ClaimChecks, claimed_body
from sqlqueue_app.tables.key_window import KNOWN_ROWS, KeyWindow
from sqlqueue_app.tables.queue import QueueTable
from sqlqueue_app.tables.rows import PeekedRow, ReceivedRow

# A lock is a number of 64 bits. Two keys with the same number (the odds are 1 in 37 among a billion keys) only take turns.
_LOCK_BYTES: Final = 8
# As many as rows are known before they are received.
_REMEMBERED_ERRORS: Final = KNOWN_ROWS
_KEY_TYPES: Final = "expected a str, int, UUID or bytes, or None for a message without a key"


class KeyedHandlerTable(HandlerTable):
    """The handlers of an endpoint, at least one of them with a key. Refuses handlers that disagree on the key of a message."""

    def __init__(self, handlers: Iterable[Handler], **options: Any) -> None:
        super().__init__(handlers, **options)
        self._failed: dict[uuid.UUID, BaseException] = {}
        for of_type in self._by_type.values():
            if (two := _two_keys(of_type)) is not None:
                raise ConfigurationError(f"{_disagree(two)} of {two[0].message_type!r}: {_ONE_KEY}")

    def calls(self, incoming: IncomingMessage) -> list[tuple[Handler, Any]]:
        """As in the base class, after the key is computed: an error of the key fails the message before a handler is called."""
        found = super().calls(incoming)
        if (error := self._failed.get(incoming.row_id)) is not None:
            # Without its key, the message was received with the lock of its row.
            raise error
        _key_among(found)
        return found

    def key_of(self, incoming: IncomingMessage, claim_checks: ClaimChecks | None) -> bytes | None:
        """The key of a waiting message; None if it has none, or if computing it raises, which fails the message later."""
        self._failed.pop(incoming.row_id, None)
        claim = None if incoming.body else incoming.headers.get(names.CLAIM_CHECK)
        if not incoming.body and not claim:
            return None
        handlers = self._of_types(incoming.message_types, incoming) if incoming.message_types else None
        if handlers is not None and all(handler.key is None for handler in handlers):
            return None
        try:
            if claim:
                body = claimed_body(claim_checks, claim)
                incoming = IncomingMessage(incoming.row_id, incoming.headers, body, incoming.correlation_id, None)
            return _key_among(super().calls(incoming))
        except BaseException as error:  # noqa: BLE001 - whatever the project's function raises, such as SystemExit
            while len(self._failed) >= _REMEMBERED_ERRORS:
                self._failed.pop(next(iter(self._failed)), None)
            self._failed[incoming.row_id] = error
            return None


def key_bytes(key: Any, handler: Handler) -> bytes | None:
    """A key as bytes. A number or UUID is the same key as its text, because some messages contain it as text."""
    if key is None or isinstance(key, bytes):
        return key
    if isinstance(key, str | int | uuid.UUID) and not isinstance(key, bool):
        return str(key).encode("utf-8", "surrogatepass")
    # Not the key itself: it may be the whole body, which is not for logs and error queues.
    raise HandlerError(f"the key of handler {handler.path} is of the type {type(key).__qualname__}: {_KEY_TYPES}")


def lock_of_key(endpoint: str, key: bytes) -> int:
    """The number of the lock of a key."""
    return _number(b"key", endpoint.encode(), key)


def key_window(endpoint: str, table: QueueTable, handlers: HandlerTable, claim_checks: ClaimChecks | None) -> KeyWindow | None:
    """The waiting messages of a queue by key; None if no handler has a key, and on SQLite, which has one writer."""
    if not isinstance(handlers, KeyedHandlerTable) or table.dialect.name == "sqlite":
        return None
    queue = table.address.table

    def lock_of(row: PeekedRow) -> int:
        try:
            text = row.headers
            received = ReceivedRow(row.id, row.correlation_id, row.reply_to_address, row.expired, text, row.body, row.row_version)
            key = handlers.key_of(read_message(received), claim_checks)
        except Exception:  # noqa: BLE001 - the message fails with the same error when it is received
            key = None
        if key is None:
            return _number(b"row", endpoint.encode(), queue.encode(), str(row.row_version).encode())
        return lock_of_key(endpoint, key)

    return KeyWindow(lock_of)


def check_keys(handlers: Iterable[Handler], *, endpoint: str, mode: TransactionMode, batch_size: object) -> bool:
    """Whether a handler has a key. ConfigurationError if the endpoint cannot handle one message of a key at a time."""
    keyed = next((handler for handler in handlers if handler.key is not None), None)
    if keyed is None:
        return False
    what = f"handler {keyed.path} has a key, but"
    if mode is TransactionMode.NONE:
        raise ConfigurationError(
            f"{what} TRANSACTION_MODE of endpoint {endpoint!r} is 'none', where no transaction holds the lock of the key while the "
            "message is handled: remove the key, or choose another mode"
        )
    if isinstance(batch_size, int) and batch_size > 1:
        raise ConfigurationError(
            f"{what} BATCH_SIZE of endpoint {endpoint!r} is {batch_size}: messages with keys are received one by one; "
            "expected 1, or 'auto', which is 1 here"
        )
    return True


def _number(*parts: bytes) -> int:
    digest = blake2b(digest_size=_LOCK_BYTES)
    for part in parts:
        digest.update(len(part).to_bytes(8))
        digest.update(part)
    return int.from_bytes(digest.digest(), signed=True)


def _key_among(calls: Sequence[tuple[Handler, Any]]) -> bytes | None:
    """The key of a message: that of the handlers that have one."""
    keyed = [(handler, message) for handler, message in calls if handler.key is not None]
    if not keyed:
        return None
    if (two := _two_keys([handler for handler, _ in keyed])) is not None:
        raise HandlerError(f"{_disagree(two)} of one message: {_ONE_KEY}")
    keys = {_computed(handler, handler.key, message) for handler, message in keyed if handler.key is not None}
    if len(keys) > 1:
        raise HandlerError(f"the messages of one body have the keys {sorted(map(repr, keys))}: {_ONE_KEY}")
    return keys.pop()


_ONE_KEY: Final = "expected one key for all handlers of a message; use the same function for them"


def _computed(handler: Handler, key_of: Callable[[Any], Any], message: Any) -> bytes | None:
    try:
        key = key_of(message)
    except BaseException as error:
        error.add_note(f"raised by the key of handler {handler.path}")
        raise
    return key_bytes(key, handler)


def _two_keys(handlers: Iterable[Handler]) -> tuple[Handler, Handler] | None:
    keyed = [handler for handler in handlers if handler.key is not None]
    other = next((handler for handler in keyed if handler.key is not keyed[0].key), None)
    return None if other is None else (keyed[0], other)


def _disagree(two: tuple[Handler, Handler]) -> str:
    return f"handlers {two[0].path} and {two[1].path} have different keys"
