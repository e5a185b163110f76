"""The abstract model `Saga`: its columns, what its methods may do, its system checks, its registration and retention."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final

from django.conf import settings as django_settings
from django.core import checks
from django.core.exceptions import FieldDoesNotExist
from django.db import models, router
from django.db.models.signals import class_prepared
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from sqlqueue_app.conf import get_settings, is_configured
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.errors import ConfigurationError, MessageTypeError
from sqlqueue_app.messages.headers import Intent
from sqlqueue_app.messages.times import as_delay
from sqlqueue_app.messages.types import full_name, plain_name, registry as message_types, resolve_enclosed
from sqlqueue_app.models.fields import JsonTextField
from sqlqueue_app.receiving.context import MessageContext, reply_at
from sqlqueue_app.receiving.handlers import registry
from sqlqueue_app.sagas.marks import Role, marked_methods
from sqlqueue_app.sagas.running import handlers_of_saga
from sqlqueue_app.status.retention import MORE, delete_in_chunks

logger = logging.getLogger("sqlqueue.receive")

WRONG_CORRELATION: Final = "sqlqueue.E050"
NOT_UNIQUE: Final = "sqlqueue.E051"
WITHOUT_DEFAULT: Final = "sqlqueue.E052"
OTHER_DATABASE: Final = "sqlqueue.E053"
WRONG_OPTION: Final = "sqlqueue.E054"
NEVER_STARTS: Final = "sqlqueue.W050"


class Saga(models.Model):
    """A long-running process: a row that messages start, continue and complete.

    A subclass is a model of your app with fields of its own, one of which, `correlate_by`, tells its sagas apart. Methods with
    `@starts`, `@continues` and `@on_timeout` handle messages; each is called with the row of its saga, locked. The changed row, the
    messages that the method sends and its other work are committed together with the received message.
    """

    correlate_by: ClassVar[str]
    """The name of the unique field whose value messages carry."""
    saga_type: ClassVar[str | None] = None
    """The name of the saga in headers; None: `app.Class`. Set it before you rename the class, or its timeouts are lost."""
    keep_completed: ClassVar[timedelta | None] = timedelta(days=30)
    """How long workers keep the rows of completed sagas; zero: they are deleted at once; None: they are kept."""
    history_limit: ClassVar[int] = 100
    """The number of messages in the history, newest last."""

    id = models.UUIDField(_("saga id"), primary_key=True, default=uuid.uuid4, editable=False)
    originator = models.TextField(_("originator"), default="", editable=False)
    original_message_id = models.TextField(_("id of the first message"), default="", editable=False)
    conversation_id = models.TextField(_("conversation"), default="", editable=False)
    started_at = models.DateTimeField(_("started at"), db_index=True, editable=False)
    updated_at = models.DateTimeField(_("updated at"), editable=False)
    completed_at = models.DateTimeField(_("completed at"), null=True, db_index=True, editable=False)
    next_timeout_at = models.DateTimeField(_("next timeout"), null=True, editable=False)
    timeouts = JsonTextField(_("timeouts"), default=list, editable=False)
    history = JsonTextField(_("history"), default=list, editable=False)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{type(self).__name__} {self.correlation}"

    @property
    def correlation(self) -> Any:
        """The value that tells this saga apart from others of its class."""
        return getattr(self, self.correlation_field().attname)

    def complete(self) -> None:
        """End the saga when the method returns: its timeouts are dropped, and its other messages go to `not_found()`."""
        self.completed_at = stored_instant(datetime.now(UTC))
        self.next_timeout_at, self.timeouts = None, []

    def request_timeout(
        self,
        context: MessageContext,
        message: object,
        body: Mapping[str, Any] | None = None,
        *,
        delay: timedelta | float | None = None,
        deliver_at: datetime | None = None,
    ) -> str:
        """Send the endpoint itself a message for this saga alone, to be handled by its `@on_timeout`; returns the message id.

        One of `delay` and `deliver_at`, as for `send()`. Raises MessageTypeError if the class has no `@on_timeout` for the
        message, ConfigurationError unless one of the times is given, and what `context.send_local()` raises.
        """
        name = message if isinstance(message, str) else message_types.of(message).name
        known = message_types.by_name(full_name(name))
        types = {plain_name(name), *(resolve_enclosed(message_types.enclosed(known.cls)) if known is not None else ())}
        timeouts = {plain_name(mark.message_type) for _, marks in self._methods() for mark in marks if mark.role is Role.TIMEOUT}
        if types.isdisjoint(timeouts):
            raise MessageTypeError(
                f"{type(self).__name__} requests the timeout {name!r}, but has no method with @on_timeout for it: add one"
            )
        if (delay is None) is (deliver_at is None):
            raise ConfigurationError(f"the timeout {name!r} needs one of delay= and deliver_at=")
        headers = {names.SAGA_ID: str(self.pk), names.IS_SAGA_TIMEOUT_MESSAGE: "True", names.SAGA_TYPE: self.type_name()}
        options: Any = {"headers": headers, "delay": delay, "deliver_at": deliver_at}
        message_id = context.send_local(message, body, **options)  # type: ignore[call-overload]
        if self.completed_at is not None:
            return str(message_id)  # it is dropped on arrival, as those that were requested before
        due = deliver_at or datetime.now(UTC) + (as_delay(delay) or timedelta())
        self.timeouts = [*self.timeouts, {"id": message_id, "type": name, "due": due.astimezone(UTC).isoformat()}]
        self.note_next_timeout()
        return str(message_id)

    def reply_to_originator(self, context: MessageContext, message: object, body: Mapping[str, Any] | None = None) -> str:
        """Reply to the sender of the message that started the saga, as if to that message. Returns the message id.

        Raises MessageTypeError if that message named no reply-to address, and what `context.reply()` raises.
        """
        if not self.originator:
            raise MessageTypeError(
                f"{self} has no originator: the sender of the message that started it does not wait for a reply "
                "(it is not an endpoint and has no SEND_AS)"
            )
        headers = {names.CORRELATION_ID: self.original_message_id, names.MESSAGE_INTENT: Intent.REPLY.value}
        return reply_at(context, self.originator, message, body, headers)

    @classmethod
    def not_found(cls, message: Any, context: MessageContext) -> None:  # noqa: ARG003 - for those who override it
        """Handle a message that continues a saga which does not run: it never started, or has completed.

        Logs a warning and drops the message, as NServiceBus does. Override it to do more: raise `Unrecoverable` to keep the
        message in the error queue. It is not called for timeouts.
        """
        logger.warning(
            "no %s runs for message %s of type %s, which is dropped",
            cls.__name__,
            context.message_id,
            ", ".join(context.message_types[:1]),
            extra={"event": "saga_not_found", "endpoint": context.endpoint, "message_id": context.message_id},
        )

    @classmethod
    def type_name(cls) -> str:
        """The name of the saga in headers."""
        return cls.saga_type or cls._meta.label

    @classmethod
    def correlation_field(cls) -> models.Field[Any, Any]:
        """The field that `correlate_by` names. ConfigurationError if there is none."""
        try:
            field = cls._meta.get_field(getattr(cls, "correlate_by", "") or "")
        except FieldDoesNotExist:
            field = None
        if not isinstance(field, models.Field):
            raise ConfigurationError(
                f"{cls.__name__}.correlate_by is {getattr(cls, 'correlate_by', None)!r}: expected the name of one of its fields"
            )
        return field

    @classmethod
    def _methods(cls) -> Any:
        return marked_methods(cls).values()

    def note_next_timeout(self) -> None:
        """Compute the column from the list of timeouts."""
        due = min((datetime.fromisoformat(each["due"]) for each in self.timeouts), default=None)
        self.next_timeout_at = None if due is None else stored_instant(due)

    @classmethod
    def own_fields(cls) -> list[models.Field[Any, Any]]:
        """The fields of the project: the state."""
        ours = {field.name for field in Saga._meta.get_fields()}
        others = (field for field in cls._meta.concrete_fields if field.name not in ours)
        return [field for field in others if not getattr(field.remote_field, "parent_link", False)]

    @classmethod
    def check(cls, **kwargs: Any) -> list[checks.CheckMessage]:
        """Django's checks of the model, and that messages can find, start and commit with its rows."""
        own = [*cls._check_correlation(), *cls._check_start(), *cls._check_options(), *cls._check_database()]
        return [*super().check(**kwargs), *own]

    @classmethod
    def _check_correlation(cls) -> list[checks.CheckMessage]:
        hint = 'name a field with unique=True, as in correlate_by = "order_id"'
        try:
            field = cls.correlation_field()
        except ConfigurationError as error:
            return [checks.Error(str(error), hint=hint, obj=cls, id=WRONG_CORRELATION)]
        if field.unique or any(_makes_unique(constraint, field.name) for constraint in cls._meta.constraints):
            return []
        text = f"{cls.__name__}.correlate_by is {field.name!r}, which is not unique: two sagas could start for one value"
        return [checks.Error(text, hint="add unique=True to the field", obj=cls, id=NOT_UNIQUE)]

    @classmethod
    def _check_start(cls) -> list[checks.CheckMessage]:
        if all(mark.role is not Role.STARTS for _, marks in cls._methods() for mark in marks):
            text = f"{cls.__name__} has no method with @starts, so no message starts it"
            return [checks.Warning(text, hint="decorate a method with @starts", obj=cls, id=NEVER_STARTS)]
        correlated = getattr(cls, "correlate_by", None)
        bare = [each.name for each in cls.own_fields() if correlated not in (each.name, each.attname) and _needs_value(each)]
        if not bare:
            return []
        text = f"{cls.__name__} starts with a row in which only the correlation is set, but {', '.join(bare)} has no default"
        return [checks.Error(text, hint="add default=… or null=True", obj=cls, id=WITHOUT_DEFAULT)]

    @classmethod
    def _check_options(cls) -> list[checks.CheckMessage]:
        kept: Any = cls.keep_completed
        limit: Any = cls.history_limit
        wrong = []
        if kept is not None and not (isinstance(kept, timedelta) and kept >= timedelta()):
            wrong.append(f"keep_completed is {kept!r}: expected a timedelta of zero or more, or None")
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
            wrong.append(f"history_limit is {limit!r}: expected a whole number of zero or more")
        return [checks.Error(f"{cls.__name__}.{text}", hint="change the value", obj=cls, id=WRONG_OPTION) for text in wrong]

    @classmethod
    def _check_database(cls) -> list[checks.CheckMessage]:
        if not is_configured():
            return []
        try:
            queues = get_settings().database
        except ConfigurationError:
            return []  # check_settings reports it
        if (alias := router.db_for_write(cls)) == queues:
            return []
        text = f"{cls.__name__} is in the database {alias!r} and the queues are in {queues!r}, so they cannot commit together"
        hint = f"route the model to {queues!r} in DATABASE_ROUTERS"
        return [checks.Error(text, hint=hint, obj=cls, id=OTHER_DATABASE)]


def _makes_unique(constraint: Any, name: str) -> bool:
    """Whether a constraint makes the field unique on its own, in all rows."""
    if not isinstance(constraint, models.UniqueConstraint) or constraint.condition is not None:
        return False
    return not constraint.expressions and tuple(constraint.fields) == (name,)


def _needs_value(field: models.Field[Any, Any]) -> bool:
    """Whether a new row needs a value for the field: texts and the like are empty without one."""
    if field.null or field.has_default() or getattr(field, "db_default", models.NOT_PROVIDED) is not models.NOT_PROVIDED:
        return False
    return not (field.empty_strings_allowed or getattr(field, "auto_now", False) or getattr(field, "auto_now_add", False))


def stored_instant(instant: datetime) -> datetime:
    """An aware instant as this project's DateTimeFields store it."""
    return instant if django_settings.USE_TZ else timezone.make_naive(instant)


_classes: dict[str, type[Saga]] = {}


def saga_classes() -> list[type[Saga]]:
    """The sagas of this process, in the order of their definition."""
    return list(_classes.values())


def _register(sender: type[models.Model], **_: Any) -> None:
    """Register the handlers of a new saga. A class that is defined again replaces its former version."""
    if not issubclass(sender, Saga) or sender._meta.proxy:
        return
    for handler in handlers_of_saga(sender, sender.type_name(), marked_methods(sender)):
        registry.add(handler)
    _classes[f"{sender.__module__}.{sender.__qualname__}"] = sender


def _delete_completed(_alias: str, now: datetime) -> None:
    """Delete the rows of completed sagas whose time is over, which may be in another database than the app's own tables."""
    for saga in saga_classes():
        # A period that reaches back before Python's first date means forever.
        if saga.keep_completed is not None and saga.keep_completed < now - datetime.min.replace(tzinfo=UTC):
            rows = saga._base_manager.using(router.db_for_write(saga))
            old = rows.filter(completed_at__lt=stored_instant(now - saga.keep_completed))
            delete_in_chunks(old.order_by("completed_at"))


class_prepared.connect(_register, dispatch_uid="sqlqueue_app.sagas")
MORE.append(_delete_completed)
