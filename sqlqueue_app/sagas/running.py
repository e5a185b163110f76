"""Handling a message by a saga: find and lock its row, or start it, call the method, and write the row.

Everything happens in the receive transaction. The lock is kept until it ends, so the messages of one saga are handled one after the
other, whatever threads and processes receive them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final

from asgiref.sync import async_to_sync
from django.core.exceptions import ValidationError
from django.db import IntegrityError, connections, router, transaction
from django.utils import timezone

from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.errors import ConfigurationError, Unrecoverable
from sqlqueue_app.messages.headers import Intent
from sqlqueue_app.messages.types import has_half_pair, plain_name
from sqlqueue_app.policies.recoverability import TransactionMode
from sqlqueue_app.receiving.context import MessageContext, in_saga, incoming_of, originator_of
from sqlqueue_app.receiving.handlers import Handler, with_timeout
from sqlqueue_app.sagas.marks import Correlate, Role, SagaMark
from sqlqueue_app.tables.connections import database_errors, dialect_of_connection

if TYPE_CHECKING:
    from sqlqueue_app.sagas.model import Saga

logger = logging.getLogger("sqlqueue.receive")

# The conflicting saga may be gone at the next attempt.
_TRIES: Final = 5
_SHOWN_CHARACTERS: Final = 100
_WHAT: Final = {Role.STARTS: "started", Role.CONTINUES: "continued", Role.TIMEOUT: "timeout"}


def handlers_of_saga(
    saga: type[Saga], saga_type: str, methods: Mapping[str, tuple[Callable[..., Any], list[SagaMark]]]
) -> list[Handler]:
    """The handlers of a saga's methods, which are registered like functions of `@handles`."""
    found: list[Handler] = []
    for name, (method, marks) in methods.items():
        for is_timeout in (False, True):
            chosen = [mark for mark in marks if (mark.role is Role.TIMEOUT) is is_timeout]
            handle = _function(SagaMethod(saga, saga_type, method, chosen), name)
            found += [_handler(saga, handle, method, mark) for mark in chosen]
    return found


def _function(method: SagaMethod, name: str) -> Callable[[Any, Any], Any]:
    """A function for the registry, with the path of the method: one for all its messages, so that each is handled once."""

    def handle(message: Any, context: Any) -> Any:
        return method.handle(message, context)

    handle.__module__ = method.saga.__module__
    handle.__qualname__ = f"{method.saga.__qualname__}.{name}"
    return handle


def _handler(saga: type[Saga], handle: Callable[[Any, Any], Any], method: Callable[..., Any], mark: SagaMark) -> Handler:
    return Handler(
        mark.message_type,
        handle,
        mark.target,
        registered_at=(saga.__module__, method.__code__.co_firstlineno),
        retry=mark.retry,
        soft_time_limit=mark.soft_time_limit,
        hard_time_limit=mark.hard_time_limit,
        is_coroutine=iscoroutinefunction(method),
        is_timeout=mark.role is Role.TIMEOUT,
        check=lambda endpoint, alias, mode: _check_endpoint(saga, endpoint, alias, mode),
    )


def _check_endpoint(saga: type[Saga], endpoint: str, alias: str, mode: TransactionMode) -> None:
    """Raise ConfigurationError if the row of a saga and its message cannot commit together."""
    if mode is TransactionMode.NONE:
        raise ConfigurationError(
            f"endpoint {endpoint!r} handles messages of the saga {saga.__qualname__}, but its TRANSACTION_MODE is 'none': choose "
            "another mode, or leave the module of the saga out of HANDLERS"
        )
    saga.correlation_field()
    if not _holds_only_messages(alias) and (own := router.db_for_write(saga)) != alias:
        raise ConfigurationError(
            f"the saga {saga.__qualname__} is in the database {own!r} and the queues are in {alias!r}, so they cannot commit "
            f"together: route the model to {alias!r} in DATABASE_ROUTERS"
        )


def _holds_only_messages(alias: str) -> bool:
    """Whether the database is that of an endpoint in memory: its sagas are in the project's own database."""
    return getattr(connections[alias], "holds_only_messages", False)


class SagaMethod:
    """One method of a saga, for its timeouts or for its other messages. Shared by all threads."""

    def __init__(self, saga: type[Saga], saga_type: str, method: Callable[..., Any], marks: Sequence[SagaMark]) -> None:
        self.saga = saga
        self._type = saga_type
        self._marks = {mark.message_type: mark for mark in marks}
        is_coroutine = iscoroutinefunction(method)
        self._call: Callable[[Saga, Any, Any], Any] = self._call_async if is_coroutine else method
        self._method = method

    def _call_async(self, saga: Saga, message: Any, context: MessageContext) -> Any:
        async def call(message: Any, context: Any) -> Any:
            return await self._method(saga, message, context)

        return async_to_sync(with_timeout(call))(message, context)

    def handle(self, message: Any, context: MessageContext) -> Any:
        """Handle a message in the receive transaction. Returns what the method returns, which must be None."""
        mark = self._marks[context.called.message_type if context.called is not None else next(iter(self._marks))]
        header = incoming_of(context).headers.get
        is_timeout = (header(names.IS_SAGA_TIMEOUT_MESSAGE) or "").strip().lower() == "true"
        saga_id = self._id_in(context)
        # One type may be a timeout of this saga, of another one, and a plain message.
        if is_timeout is not (mark.role is Role.TIMEOUT) or (is_timeout and saga_id is None):
            return None
        alias, surrounding = self._place(context)
        with surrounding:
            # A deadlock becomes our own error, which a transaction of several messages handles separately.
            with database_errors(dialect_of_connection(connections[alias]), f"find the {self.saga.__name__} of a message"):
                found, role = self._find(alias, mark, message, context, saga_id)
            if found is not None:
                return self._run(alias, found, role, message, context)
            if is_timeout:
                text = "the timeout %s of %s %s is dropped, because the saga has completed"
                extra = {"event": "saga_timeout_dropped", "endpoint": context.endpoint, "message_id": context.message_id}
                logger.info(text, context.message_id, self.saga.__name__, saga_id, extra=extra)
                return None
            return self.saga.not_found(message, context)

    def _id_in(self, context: MessageContext) -> Any:
        """The saga that the headers name; None unless it is of this class. NServiceBus ignores them in events, and so do we."""
        header = incoming_of(context).headers.get
        if not (text := header(names.SAGA_ID)) or incoming_of(context).intent is Intent.PUBLISH:
            return None
        if plain_name(header(names.SAGA_TYPE) or "") != plain_name(self._type):
            return None
        try:
            return self.saga._meta.pk.to_python(text)
        except ValidationError as error:
            raise Unrecoverable(f"the header {names.SAGA_ID} is {text!r:.80}: {'; '.join(error.messages)}") from error

    def _place(self, context: MessageContext) -> tuple[str, AbstractContextManager[object]]:
        """The alias of the rows, and a transaction around the work unless the receive transaction serves as one."""
        if context.connection is None:
            raise ConfigurationError(f"the saga {self.saga.__qualname__} needs a receive transaction")
        if not _holds_only_messages(context.connection.alias):
            return context.connection.alias, nullcontext()
        alias = router.db_for_write(self.saga)
        return alias, transaction.atomic(using=alias)

    def _find(self, alias: str, mark: SagaMark, message: Any, context: MessageContext, saga_id: Any) -> tuple[Saga | None, Role]:
        """The saga of the message, its row locked, and whether the message has just started it; None if there is none."""
        # Not in the order of the model, which may join other tables, and lock their rows.
        rows = self.saga._base_manager.using(alias).order_by()
        if saga_id is not None:
            # As in NServiceBus, such a message starts no saga.
            return rows.select_for_update().filter(pk=saga_id, completed_at=None).first(), _continuing(mark)
        field = self.saga.correlation_field()
        value = self._correlation_of(mark.correlate, message, field, alias)
        broken: IntegrityError | None = None
        for _ in range(_TRIES):
            known = rows.select_for_update().filter(**{field.attname: value}).first()
            if known is not None and known.completed_at is None:
                return known, _continuing(mark)
            if mark.role is not Role.STARTS:
                return None, mark.role
            if known is not None:
                rows.filter(pk=known.pk).delete()
            try:
                with transaction.atomic(using=alias):
                    return self._start(alias, field.attname, value, context), Role.STARTS
            except IntegrityError as error:
                # Another message has started it and committed since.
                broken = error
        raise broken or AssertionError

    def _correlation_of(self, correlate: Correlate | None, message: Any, field: Any, alias: str) -> Any:
        """The value of the message for the correlation field. Unrecoverable for one that the field cannot hold."""
        value = self._value_of(correlate, message, field)
        if isinstance(value, Enum):
            value = value.value  # as in the body
        try:
            found = field.to_python(value)
            if found in field.empty_values:
                raise ValidationError("it is empty")
            if (fault := _fault(value, found)) is not None:
                raise ValidationError(fault)
            field.run_validators(found)
            field.get_db_prep_save(found, connections[alias])
        except (ValidationError, TypeError, ValueError, ArithmeticError) as error:
            # Not every field raises ValidationError for a value of another type.
            why = "; ".join(error.messages) if isinstance(error, ValidationError) else str(error)
            raise Unrecoverable(
                f"the message belongs to no {self.saga.__qualname__}: {field.name} is {value!r:.80}: {why}"
            ) from error
        return found

    def _value_of(self, correlate: Correlate | None, message: Any, field: Any) -> Any:
        if correlate is None:
            return _member(message, dict.fromkeys((field.name, field.attname)))
        try:
            return correlate(message)
        except (LookupError, AttributeError, TypeError) as error:
            # Such as a member that the message does not have.
            text = f"the message belongs to no {self.saga.__qualname__}: correlate raised {type(error).__name__}: {error}"
            raise Unrecoverable(text) from error

    def _start(self, alias: str, attribute: str, value: Any, context: MessageContext) -> Saga:
        incoming, now = incoming_of(context), timezone.now()
        started = self.saga(
            **{attribute: value},
            originator=_storable(originator_of(context)),
            original_message_id=_storable(incoming.message_id),
            conversation_id=_storable(incoming.conversation_id),
            started_at=now,
            updated_at=now,
        )
        started.save(using=alias, force_insert=True)
        return started

    def _run(self, alias: str, saga: Saga, role: Role, message: Any, context: MessageContext) -> Any:
        """Call the method and write the row."""
        fields = saga.own_fields()
        before = {} if role is Role.STARTS else {field.name: str(field.value_from_object(saga)) for field in fields}
        if saga.timeouts:
            saga.timeouts = [each for each in saga.timeouts if each["id"] != context.message_id]
            saga.note_next_timeout()
        with in_saga(context, str(saga.pk), self._type):
            result = self._call(saga, message, context)
        now = timezone.now()
        after = {field.name: str(field.value_from_object(saga)) for field in fields}
        entry: dict[str, object] = {
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "what": _WHAT[role],
            "type": next(iter(context.message_types), ""),
            "id": context.message_id,
        }
        if changed := {name: text[:_SHOWN_CHARACTERS] for name, text in after.items() if before.get(name) != text}:
            entry["changed"] = changed
        if saga.completed_at is not None:
            entry["completed"] = True
        rows = type(saga)._base_manager.using(alias)
        if saga.completed_at is not None and saga.keep_completed == timedelta():
            rows.filter(pk=saga.pk).delete()
            return result
        saga.updated_at = now
        saga.history = [*saga.history, entry][-saga.history_limit :] if saga.history_limit else []
        saga.save(using=alias, force_update=True)
        return result


def _continuing(mark: SagaMark) -> Role:
    return mark.role if mark.role is Role.TIMEOUT else Role.CONTINUES


def _fault(value: Any, found: Any) -> str | None:
    """Why a value that the field has converted cannot identify a saga; None if it can."""
    if isinstance(found, str):
        if isinstance(value, list | Mapping):
            return "it is not text"
        return "it contains NUL or half of a surrogate pair" if "\0" in found or has_half_pair(found) else None
    if isinstance(value, int | float | Decimal) and isinstance(found, int) and found != value:
        return "it is not a whole number"
    return None if found == found else "it is not a number"  # NaN equals nothing


def _member(message: Any, wanted: Mapping[str, None]) -> Any:
    """The first of these members that a message has; in a dictionary `order_id` is also `OrderId`."""
    for name in wanted:
        if not isinstance(message, Mapping):
            if hasattr(message, name):
                return getattr(message, name)
            continue
        plain = name.replace("_", "").lower()
        found = (key for key in message if key == name or str(key).replace("_", "").lower() == plain)
        if (key := next(found, None)) is not None:
            return message[key]
    raise Unrecoverable(f"the message has no {next(iter(wanted))!r}, by which its saga is found: add it, or pass correlate=…")


def _storable(text: str | None) -> str:
    """A text of a header as every database stores it."""
    return (text or "").replace("\0", "\N{REPLACEMENT CHARACTER}")
