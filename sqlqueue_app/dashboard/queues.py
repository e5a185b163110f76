"""The pages of queues: the list, one queue with charts and messages, one message, exports and actions."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, Final
from uuid import UUID

from django import forms
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils.functional import Promise
from django.utils.translation import gettext as _, gettext_lazy, ngettext

from sqlqueue_app.browsing import messages
from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.access import Button, Permission, refusal, require
from sqlqueue_app.dashboard.actions import Action, ActionOutcome, begin_operation
from sqlqueue_app.dashboard.charts import PERIODS, Chart, Period, Points, Series, line_chart, period_of, rates
from sqlqueue_app.dashboard.delayed import delayed_table
from sqlqueue_app.dashboard.endpoint_actions import pausing_buttons
from sqlqueue_app.dashboard.endpoints import endpoints_html, instance_columns, queue_columns, queue_state, queues_table
from sqlqueue_app.dashboard.formats import Grade, State, bounded_number, counts, depth_number, number, per_second, rate, times
from sqlqueue_app.dashboard.lists import NUMBER, FileColumns, HtmlTable, TableColumn, export, facts, table, wanted_format
from sqlqueue_app.dashboard.live import LIVE_SECONDS
from sqlqueue_app.dashboard.messages import FARTHEST_JUMP, body_file, message_page_context, read_page_query
from sqlqueue_app.dashboard.page import Crumb, PageAdmin, path_of, queue_of_path
from sqlqueue_app.failures.operation_kinds import queue_scope
from sqlqueue_app.failures.queries import failures_of_rows
from sqlqueue_app.messages.errors import ConnectionLost, DatabaseError
from sqlqueue_app.models import Endpoint, QueueSample, managed_alias
from sqlqueue_app.monitoring.check_results import read_growth
from sqlqueue_app.status.instances import InstanceStatus, gone_callback_queues, read_instances, remove_callback_queue
from sqlqueue_app.status.overview import Status, read_status
from sqlqueue_app.status.queues import (
    KnownQueue,
    QueueKind,
    QueueStatus,
    known_queues,
    listed_tables,
    other_queues,
    read_queue,
    utc_now,
)
from sqlqueue_app.status.samples import read_page_samples, resolution_for
from sqlqueue_app.status.texts import PLAIN_INPUT
from sqlqueue_app.status.traffic import recent_rates
from sqlqueue_app.tables.connections import database_now, optional_read
from sqlqueue_app.tables.queue import Depth, QueueTable, queue_table


def queue_buttons(pages: QueueAdmin, request: HttpRequest, queue: KnownQueue, instances: Sequence[InstanceStatus]) -> list[Button]:
    """The actions on a queue; disabled ones show the reason. Those on its endpoint affect all its queues but callbacks."""
    is_received = queue.is_receiving and pages.admin_site.is_registered(Endpoint)
    found = []
    for endpoint in queue.endpoints if is_received else ():
        processes = [each for each in instances if each.endpoint == endpoint]
        found += pausing_buttons(pages, request, endpoint, processes, (_("Pause the endpoint"), _("Resume the endpoint")))
    found += [each.button(pages, request, path_of(queue.name)) for each in (MoveQueue, PurgeExpired, PurgeQueue)]
    if queue.kind is QueueKind.CALLBACK:
        is_leased = any(each.alive and each.callback_queue == queue.address.table for each in instances)
        reason = _("A live process has leased it.") if is_leased else ""
        found.append(RemoveCallbackQueue.button(pages, request, path_of(queue.name), reason=reason))
    refused = refusal(request, Permission.EXPORT, Permission.VIEW_BODY)
    return [*found, Button(_("Save all messages as a file"), pages.queue_url(queue, "save"), refused)]


class QueueAction(Action):
    """An action on a queue."""

    queue: KnownQueue
    table: QueueTable

    def find(self, **key: Any) -> None:
        pages: QueueAdmin = self.pages  # type: ignore[assignment]
        self.queue, self.table, _instances = pages.found(key["name"])
        self.target, self.words = self.queue.name, {"name": self.queue.name}
        self.back_url = pages.queue_url(self.queue)
        self.crumbs = (Crumb(self.queue.name, self.back_url),)

    def deleted(self, count: int) -> ActionOutcome:
        """The outcome of deleting this many messages."""
        text = ngettext("%(count)s message deleted.", "%(count)s messages deleted.", count)
        return ActionOutcome(text % {"count": number(count)}, self.back_url, count)


class PurgeQueue(QueueAction):
    """Deletes all messages of a queue: at once, or in batches by a worker if there are many."""

    name, page, route = "purge", "purge", "<str:name>/purge/"
    permission = Permission.PURGE
    label, title = gettext_lazy("Purge the queue"), gettext_lazy("Purge the queue %(name)s")
    submit = gettext_lazy("Delete all messages")
    text: str | Promise = gettext_lazy(
        "All its messages are deleted, including those that arrive during the purge. They cannot be restored."
    )
    is_dangerous = True

    def find(self, **key: Any) -> None:
        super().find(**key)
        depth = self.table.depth()
        self.is_long = not depth.exact
        if self.is_long:
            self.text = _("All its messages are deleted. They cannot be restored.")
        self.facts = ((_("Messages"), depth_number(depth).text), (_("Table"), self.table.qualified))
        self.warnings = (_("Save them first if they may be needed: the page of the queue has a link."),)
        self.typed = self.queue.name

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        if self.is_long:
            return begin_operation(self.pages, self.request, "purge_queue", queue_scope(self.table, self.queue.name), self.back_url)
        return self.deleted(messages.purge_queue(self.table))


class MoveForm(forms.Form):
    to = forms.CharField(
        label=gettext_lazy("To the queue"), help_text=gettext_lazy("The name of its table, or an address."),
        widget=forms.TextInput({**PLAIN_INPUT, "list": "sq-suggestions"}),
    )  # fmt: skip


class MoveAction(QueueAction):
    """An action that moves messages to another queue; suggests the queues that endpoints receive from."""

    permission = Permission.MOVE
    form_class = MoveForm

    def find(self, **key: Any) -> None:
        super().find(**key)
        if to := self.request.POST.get("to", "").strip():
            self.target += f" → {to}"
        known = known_queues(get_settings(), ())
        self.suggestions = [each.name for each in known if each.is_receiving and each.name != self.queue.name]


class MoveQueue(MoveAction):
    """Moves all messages of a queue to another one."""

    name, page, route = "move_queue", "move_all", "<str:name>/move/"
    label, title = gettext_lazy("Move all messages"), gettext_lazy("Move all messages of %(name)s")
    text = gettext_lazy("They are appended to another queue unchanged, in their order, each exactly once.")
    is_dangerous = True

    def find(self, **key: Any) -> None:
        super().find(**key)
        self.facts = ((_("Messages"), depth_number(self.table.depth()).text), (_("Table"), self.table.qualified))
        self.warnings = warnings = [_("Messages that are being received stay, and so do those that arrive from now on.")]
        if self.queue.kind is QueueKind.ERROR:
            warnings.append(_("To have failed messages handled again, retry them: a move does not change them."))

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        scope = queue_scope(self.table, self.queue.name, messages.target_of(get_settings(), data["to"]))
        return begin_operation(self.pages, self.request, "move_queue", scope, self.back_url)


class PurgeExpired(QueueAction):
    name, page, route = "purge_expired", "purge_expired", "<str:name>/purge-expired/"
    permission = Permission.PURGE
    label, title = gettext_lazy("Purge the expired messages"), gettext_lazy("Purge the expired messages of %(name)s")
    submit = gettext_lazy("Delete the expired messages")
    text = gettext_lazy("Expired messages are deleted: no receiver would handle them.")

    def find(self, **key: Any) -> None:
        super().find(**key)
        depth = self.table.depth()
        self.facts = ((_("Expired messages"), bounded_number(depth.expired, exact=depth.exact).text),)

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        return self.deleted(messages.purge_expired(self.table))


class RemoveCallbackQueue(QueueAction):
    """Drops the callback queue of a dead process."""

    name, page, route = "remove_callback_queue", "remove", "<str:name>/remove/"
    permission = Permission.PURGE
    label, title = gettext_lazy("Remove the queue"), gettext_lazy("Remove the queue %(name)s")
    text = gettext_lazy("The table is dropped with the replies in it, and the row of its process is deleted.")
    is_dangerous = True

    def find(self, **key: Any) -> None:
        super().find(**key)
        gone = gone_callback_queues(get_settings()) if self.queue.kind is QueueKind.CALLBACK else ()
        self.gone = next((each for each in gone if each.name == self.queue.address.table), None)
        self.facts = ((_("Replies in it"), _replies(self.gone.depth if self.gone else None)), (_("Table"), self.table.qualified))
        self.typed = self.queue.name
        self.blocked = "" if self.gone is not None else _("It is not the callback queue of a dead process.")

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        if self.gone is None or not remove_callback_queue(self.gone):
            raise ValueError(_("A process has since leased the queue."))
        return ActionOutcome(_("Queue %(name)s removed.") % self.words, self.pages.url())


class GoneQueuesForm(forms.Form):
    """The callback queues to remove; initially all are chosen."""

    queues = forms.MultipleChoiceField(label=gettext_lazy("Queues"), widget=forms.CheckboxSelectMultiple)


class RemoveGoneQueues(Action):
    """Drops the callback queues of dead processes, with one confirmation."""

    # Cannot collide with the name of a queue, in which underscores are escaped.
    name, page, route = "remove_callback_queues", "remove_gone", "_gone/remove/"
    permission = Permission.PURGE
    label = gettext_lazy("Remove the queues of dead instances")
    text = gettext_lazy("The tables are dropped with the replies in them, and the rows of their processes are deleted.")
    submit = gettext_lazy("Remove chosen queues")
    form_class = GoneQueuesForm
    is_dangerous = True

    def find(self, **key: Any) -> None:
        self.gone = {each.name: each for each in gone_callback_queues(get_settings())}
        self.target = ", ".join(sorted(self.gone))
        self.back_url = self.pages.url()
        self.count = len(self.gone)
        self.initial = {"queues": list(self.gone)}
        self.blocked = "" if self.gone else _("No callback queue belongs to a dead process.")

    def make_form(self) -> forms.Form:
        form = super().make_form()
        words = _("%(queue)s, replies in it: %(count)s")
        form.fields["queues"].choices = [  # type: ignore[attr-defined]
            (name, words % {"queue": name, "count": _replies(each.depth)}) for name, each in sorted(self.gone.items())
        ]
        return form

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        removed, errors = [], []
        for name in data["queues"]:
            try:
                removed += [name] * remove_callback_queue(self.gone[name])
            except DatabaseError as error:
                errors.append(f"{name}: {error}")
        if errors and not removed:
            raise ValueError(" ".join(errors))
        self.target = ", ".join(removed or data["queues"])
        text = ngettext("%(count)s callback queue removed.", "%(count)s callback queues removed.", len(removed))
        text %= {"count": number(len(removed))}
        if left := len(data["queues"]) - len(removed) - len(errors):
            text += " " + ngettext("%(count)s is leased again.", "%(count)s are leased again.", left) % {"count": number(left)}
        return ActionOutcome(" ".join([text, *errors]), self.back_url, len(removed), is_partial=len(removed) < len(data["queues"]))


class MessageAction(QueueAction):
    """An action on one message of a queue, after which the message is gone."""

    def find(self, **key: Any) -> None:
        super().find(**key)
        self.row_version, self.queue_url = key["row_version"], self.back_url
        self.target += f" #{self.row_version}"
        self.words = {"number": self.row_version}
        self.back_url = self.pages.url("message", path_of(self.queue.name), self.row_version)
        self.facts = ((_("Queue"), self.queue.name),)
        self.crumbs += (Crumb(f"#{self.row_version}", self.back_url),)


class DeleteMessage(MessageAction):
    name, page, route = "delete_message", "message_delete", "<str:name>/<int:row_version>/delete/"
    permission = Permission.DELETE
    logged_as = gettext_lazy("Delete a message")
    label, title, submit = gettext_lazy("Delete"), gettext_lazy("Delete message %(number)s"), gettext_lazy("Delete the message")
    text = gettext_lazy("It cannot be restored.")
    is_dangerous = True

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        messages.delete_message(self.table, self.row_version)
        return ActionOutcome(_("Message %(number)s was deleted.") % self.words, self.queue_url)


class MoveMessage(MoveAction, MessageAction):
    name, page, route = "move_message", "message_move", "<str:name>/<int:row_version>/move/"
    logged_as = gettext_lazy("Move a message")
    label, title = gettext_lazy("Move to another queue"), gettext_lazy("Move message %(number)s")
    submit = gettext_lazy("Move the message")
    text = gettext_lazy("It is appended to another queue unchanged, in one transaction.")

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        moved = messages.move_message(get_settings(), self.table, self.row_version, data["to"])
        words = {**self.words, "queue": moved.address.table}
        return ActionOutcome(_("Message %(number)s was moved to %(queue)s.") % words, self.queue_url)


class QueueAdmin(PageAdmin):
    """The pages of queues. They need the permission `sqlqueue_app.view_queue`."""

    action_classes = (RemoveGoneQueues, PurgeQueue, MoveQueue, PurgeExpired, RemoveCallbackQueue, DeleteMessage, MoveMessage)
    routes: ClassVar = {
        "messages": "<str:name>/", "message": "<str:name>/<int:row_version>/", "save": "<str:name>/save/",
        "message_body": "<str:name>/<int:row_version>/body/",
    }  # fmt: skip

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """All queue tables of the database, and the tables of delayed messages."""
        status = read_status(others=True, with_schedules=False)
        flows, growth = recent_rates(status), _growth()
        only_expired = "expired" in request.GET
        queues = [each for each in status.queues if not only_expired or (each.depth is not None and each.depth.expired)]
        if wanted_format(request):
            return export(request, "queues", _queue_file_columns(status, flows, growth), queues)
        callbacks = [each for each in queues if each.queue.kind is QueueKind.CALLBACK]
        others = [each for each in queues if each.queue.kind is QueueKind.OTHER]
        named = [each for each in queues if each.queue.kind not in (QueueKind.CALLBACK, QueueKind.OTHER)]
        columns = queue_columns(self, status.instances, growth)
        shown = {name: " / ".join("–" if each is None else rate(each) for each in found) for name, found in flows.items()}
        columns.insert(-1, TableColumn(_("In and out per second"), lambda each: shown.get(each.name), NUMBER))
        return self.page(
            request,
            "queues",
            counted=status,
            summary=_summary(status),
            only_expired=only_expired,
            queues=queues_table(_("Queues of the endpoints in the settings"), columns, named),
            others=queues_table(_("Queue tables that are not in the settings"), columns, others),
            problems=[each.problem for each in queues if each.problem is not None],
            delayed=delayed_table(self, () if only_expired else status.delayed, status.managed_now or status.taken_at),
            instances=self._instances(status),
            callbacks=queues_table(_("Callback queues: replies wait here for one process each"), columns, callbacks),
            # Opened if something is wrong: unfetched replies, missing tables.
            callbacks_open=only_expired or any(queue_state(each, status.instances).level is not Grade.OK for each in callbacks),
            callback_buttons=[RemoveGoneQueues.button(self, request)],
            live_seconds=LIVE_SECONDS,
            **(extra_context or {}),
        )

    def _instances(self, status: Status) -> HtmlTable | None:
        columns: list[TableColumn[InstanceStatus]] = [
            TableColumn(_("Endpoint"), lambda each: endpoints_html(self, (each.endpoint,))),
            *instance_columns(self, status.queues),
        ]
        caption = _("Registered processes, each with the callback queue that it leases")
        return table(caption, columns, status.instances, lambda each: f"process {each.id}") if status.instances else None

    def messages_view(self, request: HttpRequest, name: str) -> HttpResponseBase:
        """One queue: charts, a page of messages, actions."""
        queue, table, instances = self.found(name)
        status = read_queue(get_settings(), queue)
        if status.problem is not None and status.problem.stops_work:
            return self._broken(request, status)
        try:
            found = messages.read_page(table, read_page_query(request.GET, table))
        except DatabaseError as error:
            return self._broken(request, read_queue(get_settings(), queue), error)
        if wanted_format(request):
            return export(request, queue.name, MESSAGE_COLUMNS, found.messages)
        failures = _failures_of(queue, [each.row_version for each in found.messages])
        period = period_of(request)
        return self.page(
            request,
            "messages",
            live_seconds=period.refresh_seconds,
            title=_("Queue %(name)s") % {"name": queue.name},
            crumbs=(Crumb(queue.name),),
            facts=facts([*queue_columns(self, instances, _growth())[1:], TableColumn(_("Table"), lambda each: each.table)], status),
            problem=status.problem,
            charts=queue_charts(queue, instances, period),
            period=period,
            periods=PERIODS,
            buttons=queue_buttons(self, request, queue, instances),
            queue=queue,
            rows=[(each, failures.get(each.row_version)) for each in found.messages],
            found=found,
            sizes=messages.PAGE_SIZES,
            farthest=FARTHEST_JUMP,
            send_command=f"python manage.py sqlqueue_send {shlex.quote(queue.name)} --type Example.Hello --body '{{}}'",
        )

    def message_view(self, request: HttpRequest, name: str, row_version: int) -> HttpResponse:
        """One message in full."""
        queue, table, _instances = self.found(name)
        try:
            found = messages.read_message(table, row_version, as_hex="hex" in request.GET)
        except DatabaseError as error:
            return self._broken(request, read_queue(get_settings(), queue), error)
        if found is None:
            text = _("Message %(row_version)s is not in the queue “%(queue)s”: it was received or deleted, or never existed.")
            text %= {"row_version": row_version, "queue": queue.name}
            return self.message_gone(request, text, (Crumb(queue.name, self.queue_url(queue)), Crumb(f"#{row_version}")))
        refused = refusal(request, Permission.EXPORT, Permission.VIEW_BODY)
        save = Button(_("Save the body as a file"), self.url("message_body", path_of(queue.name), row_version), refused)
        actions = (each.button(self, request, path_of(queue.name), row_version) for each in (MoveMessage, DeleteMessage))
        return self.page(
            request,
            "message",
            title=_("Message %(row_version)s in %(queue)s") % {"row_version": row_version, "queue": queue.name},
            crumbs=(Crumb(queue.name, self.queue_url(queue)), Crumb(f"#{row_version}")),
            queue=queue,
            failure=_failures_of(queue, [row_version]).get(row_version),
            table=table.qualified,
            buttons=[save, *actions],
            **message_page_context(self, request, found),
        )

    def message_body_view(self, request: HttpRequest, name: str, row_version: int) -> HttpResponse:
        """The body of a message as a file."""
        require(request, Permission.EXPORT, Permission.VIEW_BODY)
        return body_file(messages.read_body(self.found(name)[1], row_version, messages.MAX_BODY_BYTES), row_version)

    def save_view(self, request: HttpRequest, name: str) -> StreamingHttpResponse:
        """All messages of a queue as a file."""
        require(request, Permission.EXPORT, Permission.VIEW_BODY)
        table = self.found(name)[1]
        table.layout()  # raise an error of the table before the file starts
        headers = {"Content-Disposition": 'attachment; filename="messages.ndjson"', "X-Content-Type-Options": "nosniff"}
        return StreamingHttpResponse(messages.saved_messages(table), content_type="application/x-ndjson", headers=headers)

    def _broken(self, request: HttpRequest, status: QueueStatus, error: DatabaseError | None = None) -> HttpResponse:
        """The error page of a queue: shows its problem rather than the error, unless only the error is known."""
        if isinstance(error, ConnectionLost):
            raise error
        is_known = status.problem is not None and status.problem.stops_work
        text = _("The messages of this queue cannot be shown.")
        return self.problem(
            request,
            title=_("Queue %(name)s") % {"name": status.name},
            text=text if is_known else f"{text} {error}",
            status=404 if status.exists is False else 500,
            crumbs=(Crumb(status.name),),
            problem=status.problem if is_known else None,
        )

    def found(self, name: str) -> tuple[KnownQueue, QueueTable, Sequence[InstanceStatus]]:
        """The queue that a URL part names, preferring those of the settings, its table, and the instances; Http404 if none."""
        settings = get_settings()
        instances, rows, _problem = read_instances()
        known = known_queues(settings, rows)
        found = queue_of_path(name, known)
        found = found or queue_of_path(name, other_queues(settings, known, listed_tables(settings.database)))
        if found is None:
            raise Http404(_("There is no queue “%(name)s”.") % {"name": name})
        return found, queue_table(settings.database, found.address), instances

    def queue_url(self, queue: KnownQueue, page: str = "messages") -> str:
        """The URL of a page of a queue."""
        return self.url(page, path_of(queue.name))


def _growth() -> dict[str, str]:
    with optional_read(managed_alias(), "read which queues grow"):
        return read_growth(managed_alias(), utc_now())
    return {}


def _failures_of(queue: KnownQueue, row_versions: Sequence[int]) -> dict[int, UUID]:
    """The failed messages in these rows of an error queue."""
    return failures_of_rows(queue.name, row_versions) if queue.kind is QueueKind.ERROR and row_versions else {}


def _summary(status: Status) -> list[State]:
    """The overall state in a few words."""
    broken = sum(each.problem is not None and each.problem.stops_work for each in status.queues)
    depths = [each.depth for each in status.queues if each.queue.kind is QueueKind.ERROR and each.depth is not None]
    failed = sum(depth.waiting for depth in depths)
    failures = f"{'' if all(depth.exact for depth in depths) else '≈ '}{number(failed)}"
    alive, dead = sum(each.alive for each in status.instances), sum(each.is_lost for each in status.instances)
    of_failures = Grade.INFO if status.error_queue_owner == "servicecontrol" else Grade.WARNING
    return [
        State(Grade.ERROR if broken else Grade.OK, _("tables with errors: %(count)s") % {"count": number(broken)}),
        State(of_failures if failed else Grade.OK, _("messages in error queues: %(count)s") % {"count": failures}),
        State(Grade.OK if alive else Grade.WARNING, _("live instances: %(count)s") % {"count": number(alive)}),
        *([State(Grade.ERROR, _("dead instances: %(count)s") % {"count": number(dead)})] if dead else ()),
    ]


def queue_charts(queue: KnownQueue, instances: Sequence[InstanceStatus], period: Period) -> list[Chart]:
    """Queue length, rates in and out, and the age of the first message, if known.

    None without samples, and none if the tables of `migrate` are missing, which the overview reports.
    """
    alias = managed_alias()
    samples: list[QueueSample] = []
    with optional_read(alias, "read the samples of a queue"):
        now = database_now(alias)
        samples = read_page_samples(alias, [queue.name], period.length, instances, now)[queue.name]
    if not samples:
        return []
    step = timedelta(seconds=resolution_for(period.length).seconds)
    draw = partial(line_chart, begin=now - period.length, end=now, step=step)

    def points(name: str) -> Points:
        return [(each.taken_at, getattr(each, name)) for each in samples]

    depth = [Series(_("messages"), points("waiting"))]
    if any(each.most_waiting != each.waiting for each in samples):
        depth.append(Series(_("at most"), points("most_waiting")))
    others = (("expired", _("expired")), ("overdue", _("overdue")))
    depth += [Series(label, points(name)) for name, label in others if any(getattr(each, name) for each in samples)]
    charts = [draw(_("Waiting"), depth, scale=counts)]
    if any(each.written is not None for each in samples) and (came := rates(points("written"))):
        # Rows that were written and rolled back count as both.
        gone = [(each.taken_at, None if each.written is None else each.written - each.waiting) for each in samples if each.exact]
        flow = [Series(_("In"), came), Series(_("Out"), rates(gone))]
        charts.append(draw(_("In and out"), flow, scale=per_second, least_top=1.0))
    if any(each.head_age_seconds is not None for each in samples):
        charts.append(draw(_("Age of the oldest message"), [Series(_("age"), points("head_age_seconds"))], scale=times))
    return charts


# Without bodies.
MESSAGE_COLUMNS: Final[FileColumns] = {
    "row_version": "row_version", "message_id": "message_id", "types": lambda each: list(each.types), "intent": "intent",
    "time_sent": "time_sent", "expires": "expires", "size": "size",
    "flags": lambda each: sorted(flag.value for flag in each.flags), "failure": lambda each: each.unreadable or each.failure,
}  # fmt: skip


def _queue_file_columns(status: Status, flows: Mapping[str, tuple[float | None, ...]], growth: Mapping[str, str]) -> FileColumns:
    return {
        "queue": "name", "kind": "queue.kind.value", "table": "table",
        "endpoints": lambda each: ", ".join(each.queue.endpoints),
        "state": lambda each: str(queue_state(each, status.instances, growth).word),
        "messages": "depth.waiting", "exact": "depth.exact", "expiring": "depth.expiring", "expired": "depth.expired",
        "head_age_seconds": "head_age_seconds", "threads": status.threads_of,
        "in_per_second": lambda each: flows.get(each.name, (None, None))[0],
        "out_per_second": lambda each: flows.get(each.name, (None, None))[1],
    }  # fmt: skip


def _replies(depth: Depth | None) -> str:
    return "0" if depth is None else depth_number(depth).text
