"""`manage.py run_sqlqueue_pipeline`: move audited messages to a lake and compute rollups, with Spark."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import connections

from sqlqueue_app.conf import Settings, get_settings
from sqlqueue_app.management.command_line import (
    SqlQueueCommand,
    add_format_argument,
    from_command_line,
    not_blank,
    one_line,
    whole_number,
)
from sqlqueue_app.messages.errors import ConfigurationError, DatabaseError, SqlQueueError, counted
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.worker.logs import configure_logging, remove_logging
from sqlqueue_app.worker.stop_signals import RunRequests, stop_on_signals

_NEEDED = ("pyspark", "pyarrow")
_EPILOG = """\
signals:
  The first SIGINT (Ctrl-C) or SIGTERM finishes the batch in progress and ends.
  The second one ends the process at once; the next run finishes or drops unfinished batches. Nothing is lost or taken twice.

exit codes:
  0  done, or stopped by a signal
  1  the lake, Spark or the database failed, or another pipeline is running
  2  a wrong argument or setting, or the extra `spark` is not installed
  128 + signal number  ended by a second signal (130 for Ctrl-C, 143 for SIGTERM)

examples:
  manage.py run_sqlqueue_pipeline --lake /srv/lake
  manage.py run_sqlqueue_pipeline --continuous
  manage.py run_sqlqueue_pipeline --lake s3a://bucket/lake --master spark://host:7077
  manage.py run_sqlqueue_pipeline --keep-days 400 --compact
"""


class Command(SqlQueueCommand):
    """Parses arguments; `run_pipeline` does the work."""

    help = (
        "Move the messages of the audit queues into Parquet files, each exactly once; copy new messages of\n"
        "the error queues; compute the figures that the admin shows. Requires the extra:\n"
        "pip install 'django-sqlqueue[spark]'."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.epilog = _EPILOG
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.add_argument(
            "--master",
            type=not_blank("the URL of a Spark master"),
            metavar="URL",
            help="where Spark runs (default: MASTER of the settings, local[*])",
        )
        parser.add_argument(
            "--lake",
            type=not_blank("a folder or a URL"),
            metavar="PATH",
            help="a folder, or a URL that Spark can write (default: LAKE of the settings)",
        )
        how_long = parser.add_mutually_exclusive_group()
        how_long.add_argument("--once", action="store_true", help="end when the audit queues are empty (the default)")
        how_long.add_argument("--continuous", action="store_true", help="run until stopped by a signal")
        how_long.add_argument(
            "--on-request",
            action="store_true",
            help="run at once, then for each line of standard input while Spark is warm; stop as after a first signal when the "
            "input ends (workers use this)",
        )
        parser.add_argument(
            "--peek-only",
            action="store_true",
            default=None,
            help="copy the messages of the audit queues and leave them in their queues (default: PEEK_ONLY of the settings)",
        )
        parser.add_argument(
            "--keep-days",
            type=whole_number(1),
            metavar="N",
            help="delete messages of the lake that are older (default: KEEP_DAYS of the settings; figures stay)",
        )
        parser.add_argument("--compact", action="store_true", help="merge small files at the end")
        parser.add_argument(
            "--batch-size",
            type=whole_number(1),
            metavar="N",
            help="maximum number of messages per commit (default: BATCH_SIZE of the settings, 500000)",
        )
        add_format_argument(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        settings = get_settings()
        missing = [name for name in _NEEDED if find_spec(name) is None]
        if missing:
            raise ConfigurationError(f"not installed: {' and '.join(missing)}; run pip install 'django-sqlqueue[spark]'")
        # Only now: all this needs the extra.
        from sqlqueue_app.pipeline.run import options_of  # noqa: PLC0415

        chosen = options_of(
            settings,
            continuous=options["continuous"],
            compact=options["compact"],
            **{name: options[name] for name in ("lake", "master", "peek_only", "keep_days", "batch_size")},
        )
        handler = configure_logging("text", level=logging.WARNING, propagate=not from_command_line(self))
        stop = StopSignal()
        requests = RunRequests(stop) if options["on_request"] else None
        try:
            with stop_on_signals(stop):
                self._run(settings, chosen, stop, requests, options["format"])
        except (ConfigurationError, DatabaseError):
            raise
        except SqlQueueError as error:
            raise CommandError(one_line(str(error)), returncode=1) from error
        finally:
            self.end_progress()
            remove_logging(handler)

    def _run(self, settings: Settings, chosen: Any, stop: StopSignal, requests: RunRequests | None, form: str) -> None:
        """Run once, and with `requests` again for each of them until the session has been idle for its time."""
        from sqlqueue_app.pipeline.run import run_pipeline, warm_session  # noqa: PLC0415

        warm = warm_session(chosen)
        try:
            while True:
                done = run_pipeline(settings, chosen, stop, progress=lambda done: self.show_progress(_counts(done)), warm=warm)
                self.end_progress()
                self._print_result(done, "copied" if chosen.peek_only else "taken", form)
                self.stdout.flush()
                if requests is None:
                    return
                # the server may drop them in the meantime
                connections.close_all()
                if not _is_requested(requests, stop, warm.stop_if_idle):
                    return
        except BrokenPipeError:
            # the worker that reads the results was killed; the run itself is complete
            if requests is None:
                raise
        finally:
            warm.stop()

    def _print_result(self, done: Any, word: str, form: str) -> None:
        if form == "json":
            self.write_json(asdict(done))
            return
        if done.finished:
            self.stdout.write(f"finished {counted(done.finished, 'batch', 'batches')} of an earlier run")
        self.stdout.write(_counts(done, f" {word}", " copied"))
        if done.unreadable:
            self.stdout.write(
                f"copied unchanged to the table `unreadable` of the lake: {counted(done.unreadable, 'unreadable row')}"
            )
        for problem in done.problems:
            self.stderr.write(f"warning: {problem}")


def _is_requested(requests: RunRequests, stop: StopSignal, stop_if_idle: Callable[[], float | None]) -> bool:
    """Wait for a request while the session is warm; False once it is not, or on the stop."""
    while not stop.is_set() and (left := stop_if_idle()) is not None:
        if requests.wait(left):
            return True
    return False


def _counts(done: Any, taken: str = "", copied: str = "") -> str:
    batches = counted(done.batches, "batch", "batches")
    return f"{counted(done.messages, 'message')}{taken}, {counted(done.failures, 'failure')}{copied}, in {batches}"
