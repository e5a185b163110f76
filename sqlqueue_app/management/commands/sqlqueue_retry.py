"""`manage.py sqlqueue_retry`: retry failed messages in this process; needs no worker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from django.core.management.base import CommandError, CommandParser

from sqlqueue_app.conf import Settings, get_settings
from sqlqueue_app.failures.operation_batches import describe_reason
from sqlqueue_app.failures.operation_kinds import error_queue_refusal
from sqlqueue_app.failures.operations import Preview, preview, run_operation
from sqlqueue_app.failures.queries import find_messages, group_exists, read_all_failures
from sqlqueue_app.failures.retrying import RETRIABLE
from sqlqueue_app.failures.selection import FailureSelection
from sqlqueue_app.management.command_line import SqlQueueCommand, add_format_argument
from sqlqueue_app.messages.envelope import guid_of
from sqlqueue_app.messages.errors import ConfigurationError, counted, terminal_text
from sqlqueue_app.models import ActionResult, Operation, OperationState
from sqlqueue_app.status.events import command_actor, record_action

_INTERRUPTED = 130


class Command(SqlQueueCommand):
    """Parses arguments; the bulk operation `retry` does the work."""

    help = (
        "Send failed messages back to the queues in which they failed, or to the target of a redirect. Messages that cannot be "
        "sent stay in the error queue, and the reason is printed. Exit code 0: all were sent; 1: some were not, or an error queue "
        "could not be read; 130: cancelled by Ctrl-C."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        which = parser.add_mutually_exclusive_group(required=True)
        which.add_argument("--message", metavar="ID", help="the message of this message id or unique message id")
        which.add_argument("--group", metavar="ID", help="the messages of this group that have not been retried, by its id")
        which.add_argument("--all", action="store_true", help="every failed message that has not been retried or archived")
        parser.add_argument("--dry-run", action="store_true", help="only report how many would be sent, and why not the others")
        add_format_argument(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        settings = get_settings()
        if reason := error_queue_refusal(settings):
            raise ConfigurationError(reason)
        problems = read_all_failures(settings)
        for problem in problems:
            self.stderr.write(f"warning: {terminal_text(problem)}")
        selection = self._selection(options)
        if options["dry_run"]:
            self._print_preview(preview(settings, "retry", selection), options["format"])
        elif not selection.or_statuses(*RETRIABLE).queryset().exists():
            self._print_nothing(options["format"])
        else:
            self._retry(settings, selection, options["format"])
        if problems and options["message"] is None:
            raise CommandError(
                f"{counted(len(problems), 'error queue')} could not be read, so messages may be missing", returncode=1
            )

    def _selection(self, options: dict[str, Any]) -> FailureSelection:
        if options["message"] is not None:
            found = find_messages(options["message"])
            if not found:
                raise ConfigurationError(f"there is no failed message with the id {options['message']!r} in the error queues")
            selection = FailureSelection(ids=tuple(found))
            # A message may have failed at two endpoints under the same id: choose those that can be retried.
            retriable = replace(selection, statuses=RETRIABLE)
            return retriable if retriable.queryset().exists() else selection
        if options["group"] is not None:
            group = guid_of(options["group"])
            if group is None or not group_exists(group):
                raise ConfigurationError(f"there is no group of failures with the id {options['group']!r}: see the admin")
            return FailureSelection(group=group)
        return FailureSelection()

    def _retry(self, settings: Settings, selection: FailureSelection, form: str) -> None:
        operation = run_operation(settings, "retry", selection, actor=command_actor(), progress=self._progress)
        left = operation.skipped + operation.failed
        done = operation.state == OperationState.COMPLETED
        record_action(
            command_actor(),
            "retry",
            operation.description,
            result=ActionResult.DONE if done else ActionResult.FAILED,
            count=operation.done,
            reason=operation.error or ("" if done else str(operation.state)),
            operation=operation,
        )
        if form == "json":
            self.write_json(_document(operation))
        else:
            for line in _lines(operation):
                self.stdout.write(line)
        if operation.state == OperationState.CANCELLED:
            raise CommandError(f"cancelled; retried before: {counted(operation.done, 'message')}", returncode=_INTERRUPTED)
        if left or not done:
            raise CommandError(
                operation.error or f"left {left:,} of {counted(operation.total, 'message')} where they are, not retried",
                returncode=1,
            )

    def _progress(self, operation: Operation) -> None:
        self.write_progress(operation.processed, max(operation.total, operation.processed), "messages")

    def _print_nothing(self, form: str) -> None:
        if form == "json":
            self.write_json({**_document(Operation(state=OperationState.COMPLETED)), "operation": None})
        else:
            self.stdout.write("there is nothing to retry")

    def _print_preview(self, found: Preview, form: str) -> None:
        if form == "json":
            reasons = [
                {
                    "what": "skipped",
                    "reason": str(reason),
                    "detail": detail,
                    "count": count,
                    "text": describe_reason(reason, detail),
                }
                for (reason, detail), count in found.reasons.most_common()
            ]
            document = {"dry_run": True, "total": found.total, "eligible": found.eligible, "not_eligible": found.not_eligible}
            self.write_json({**document, "targets": dict(found.targets), "reasons": reasons})
            return
        self.stdout.write(f"{counted(found.eligible, 'message')} would be retried")
        for target, count in found.targets.most_common():
            self.stdout.write(f"  {count:,} to {terminal_text(target)}")
        if found.not_eligible:
            self.stdout.write(f"{counted(found.not_eligible, 'message')} would not be")
        for text, count in found.in_words():
            self.stdout.write(f"  {count:,}: {terminal_text(text)}")


def _document(operation: Operation) -> dict[str, Any]:
    """The keys are documented in docs/reference/commands.md and do not change."""
    reasons = [{**entry, "text": describe_reason(entry["reason"], entry["detail"])} for entry in operation.log]
    return {
        "dry_run": False,
        "operation": str(operation.pk),
        "state": str(operation.state),
        "total": operation.total,
        "retried": operation.done,
        "skipped": operation.skipped,
        "failed": operation.failed,
        "reasons": reasons,
    }


def _lines(operation: Operation) -> Iterator[str]:
    yield f"{counted(operation.done, 'message')} retried"
    for entry in operation.log:
        yield f"  {entry['what']} {entry['count']:,}: {terminal_text(describe_reason(entry['reason'], entry['detail']))}"
