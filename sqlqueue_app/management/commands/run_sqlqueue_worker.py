"""`manage.py run_sqlqueue_worker`: receive messages until a signal."""

from __future__ import annotations

import argparse
import contextlib
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

from django.conf import settings as django_settings
from django.core import checks
from django.core.management.base import CommandError, CommandParser
from django.db import connections

from sqlqueue_app.conf import ConcurrencyModel, Settings, get_settings
from sqlqueue_app.conf.kinds import MAX_MEMORY, MAX_PARALLEL
from sqlqueue_app.management.command_line import ListAction, SqlQueueCommand, from_command_line, whole_number
from sqlqueue_app.messages.errors import ConfigurationError, WorkerFailed
from sqlqueue_app.receiving.endpoint import endpoints_of
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.worker.affinity import (
    AUTO,
    NONE,
    AdaptiveAffinity,
    Affinity,
    check_processors,
    is_supported,
    parse_affinity,
    staying_on,
)
from sqlqueue_app.worker.logs import configure_logging, remove_logging
from sqlqueue_app.worker.reloading import watching_files
from sqlqueue_app.worker.replacement import ProcessLimits
from sqlqueue_app.worker.run import RunOptions, run_worker
from sqlqueue_app.worker.stop_signals import stop_on_signals
from sqlqueue_app.worker.supervisor import (
    REPLACED_EXIT_CODE,
    SupervisedProcess,
    Supervisor,
    become_supervisor,
    can_supervise,
    own_command_line,
    supervise,
)

_EPILOG = """\
signals:
  The first SIGINT (Ctrl-C) or SIGTERM stops receiving, finishes the messages that are being handled, and ends.
  The second one ends the process at once; unfinished messages return to their queues.
  The same signal within a second counts once, because `timeout` sends it to the process and to its group.

exit codes:
  0  stopped by a signal, or all queues empty with --until-empty
  1  a database error, or a missing table (run migrate or sqlqueue_install, or start with --install)
  2  a wrong argument or setting, or a missing driver
  3  a thread died of an unexpected error and the worker stopped: start it again (a supervisor does)
  4  a process of a supervisor has reached its limit of messages or memory, or got a signal; the supervisor starts another
  128 + signal number  ended by a second signal (130 for Ctrl-C, 143 for SIGTERM)

examples:
  manage.py run_sqlqueue_worker
  manage.py run_sqlqueue_worker --endpoint Sales --max-concurrency 8
  manage.py run_sqlqueue_worker --processes 4
  manage.py run_sqlqueue_worker --processes 2 --cpu-affinity none
  manage.py run_sqlqueue_worker --until-empty --log-format json
  manage.py run_sqlqueue_worker --processes 0
  manage.py run_sqlqueue_worker --reload
"""


_RELOAD_NEEDS_SUPERVISOR = (
    "--reload needs a supervisor, which starts the worker again: run it by `manage.py run_sqlqueue_worker` on Linux or macOS, "
    "without --processes 0"
)

_LIMITS_NEED_SUPERVISOR = (
    "--max-messages-per-process and --max-memory-per-process need a supervisor, which replaces the process: run it by "
    "`manage.py run_sqlqueue_worker` on Linux or macOS, without --processes 0"
)

_EAGER_NEEDS_NO_WORKER = (
    'SQLQUEUE["EAGER"] is on: send() handles messages in the process that sends them; remove it or set it to False to run a worker'
)

_LOGGING_CONFIG_OF_DJANGO = "logging.config.dictConfig"

# Not one of the codes that a supervisor treats as final.
EXIT_FAILED = 3


def _batch_size(text: str) -> int | str:
    return text if text == "auto" else whole_number(1)(text)


def _add_process_options(parser: CommandParser) -> None:
    parser.add_argument(
        "--processes",
        type=whole_number(0, MAX_PARALLEL),
        metavar="N",
        help="number of worker processes; a supervisor restarts those that die. 0: run in this process without a supervisor, "
        "for debuggers and scripts (default: 1; 0 with call_command())",
    )
    parser.add_argument(
        "--cpu-affinity",
        type=_affinity,
        metavar="auto|none|0,2-4",
        help="keep each process on one processor: 'auto' while it handles many quick messages, which makes it faster; 'none' "
        "never; a list always, in turn (default: auto on Linux; none elsewhere and with call_command())",
    )
    parser.add_argument(
        "--max-messages-per-process",
        type=whole_number(1),
        metavar="N",
        help="replace a process when it has received this many messages and finished them (default: MAX_MESSAGES_PER_PROCESS)",
    )
    parser.add_argument(
        "--max-memory-per-process",
        type=whole_number(1, MAX_MEMORY),
        metavar="BYTES",
        help="replace a process when it occupies this much memory and has finished its messages (default: MAX_MEMORY_PER_PROCESS)",
    )


def _limits(settings: Settings, options: Mapping[str, Any]) -> ProcessLimits:
    return ProcessLimits(
        StopSignal(),
        options["max_messages_per_process"] or settings.max_messages_per_process,
        options["max_memory_per_process"] or settings.max_memory_per_process,
    )


def _add_log_options(parser: CommandParser) -> None:
    parser.add_argument(
        "--log-format", choices=("text", "json"), default="text", help="log lines as text or as JSON (default: %(default)s)"
    )
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="the minimum log level (default: %(default)s); a LOGGING setting for 'sqlqueue' overrides both",
    )


def _level(options: dict[str, Any]) -> int:
    found: int = getattr(logging, options["log_level"].upper())
    return found


def _staying_on(affinity: Affinity, process: int) -> contextlib.AbstractContextManager[object]:
    return contextlib.nullcontext() if isinstance(affinity, str) else staying_on(affinity, process)


def _adaptive(affinity: Affinity, process: int) -> AdaptiveAffinity | None:
    return AdaptiveAffinity(process) if affinity == AUTO and is_supported() else None


def _refuse_failing_checks() -> None:
    """Raise ConfigurationError for errors of system checks other than those of the settings alone."""
    errors = [each for each in checks.run_checks(tags=["sqlqueue"]) if each.is_serious() and not each.is_silenced()]
    if errors:
        raise ConfigurationError("; ".join(f"{each.msg}; {each.hint}" for each in errors))


def _affinity(text: str) -> Affinity:
    try:
        return parse_affinity(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


class Command(SqlQueueCommand):
    """Parses arguments; `run_worker` does the work."""

    help = (
        "Receive the messages of the endpoints in SQLQUEUE and call their handlers, each message in one\n"
        "transaction with its handlers' work (depending on TRANSACTION_MODE). The worker waits for an\n"
        "unreachable database; a wrong name, user or password ends it."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.epilog = _EPILOG
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.add_argument(
            "--endpoint",
            action=ListAction,
            metavar="E",
            help="the endpoints to run, by name (default: all in the settings, except that of SEND_AS if its HANDLERS is empty)",
        )
        parser.add_argument(
            "--max-concurrency",
            type=whole_number(1, MAX_PARALLEL),
            metavar="N",
            help="maximum number of messages of a main queue handled at once (default: MAX_CONCURRENCY of the endpoint)",
        )
        parser.add_argument(
            "--model",
            choices=get_args(ConcurrencyModel),
            help="how the number of threads follows the load (default: CONCURRENCY_MODEL of the endpoint)",
        )
        parser.add_argument(
            "--batch-size",
            type=_batch_size,
            metavar="N",
            help="maximum number of messages per transaction, or 'auto' (default: BATCH_SIZE of the endpoint)",
        )
        _add_process_options(parser)
        parser.add_argument(
            "--until-empty", action="store_true", help="end with exit code 0 when all queues are empty, for scripts and tests"
        )
        parser.add_argument(
            "--reload",
            action="store_true",
            help="for development: when a file of the project changes, finish the messages in progress and start again",
        )
        parser.add_argument("--install", action="store_true", help="create missing tables first; needs the right to create tables")
        _add_log_options(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        settings = get_settings()
        if settings.eager:
            raise ConfigurationError(_EAGER_NEEDS_NO_WORKER)
        chosen = RunOptions(
            endpoints=options["endpoint"],
            max_concurrency=options["max_concurrency"],
            model=options["model"],
            batch_size=options["batch_size"],
            until_empty=options["until_empty"],
            install=options["install"],
        )
        affinity: Affinity = options["cpu_affinity"] or (AUTO if from_command_line(self) else NONE)
        if not isinstance(affinity, str):
            check_processors(affinity)
        # If Python code calls the command, handlers of the root logger (such as caplog) receive these records too.
        handler = configure_logging(options["log_format"], level=_level(options), propagate=not from_command_line(self))
        try:
            supervised = SupervisedProcess.found()
            if supervised is not None:
                chosen = replace(chosen, limits=_limits(settings, options), purges=supervised.is_first)
                with _staying_on(affinity, supervised.number):
                    self._work_supervised(settings, chosen, supervised, _adaptive(affinity, supervised.number))
                return
            _refuse_failing_checks()
            processes = self._processes(options["processes"])
            if not processes and (options["max_messages_per_process"] or options["max_memory_per_process"]):
                raise ConfigurationError(_LIMITS_NEED_SUPERVISOR)
            if options["reload"]:
                if not processes:
                    raise ConfigurationError(_RELOAD_NEEDS_SUPERVISOR)
                # Only files of imported modules are watched.
                endpoints_of(settings, chosen.endpoints)
            if processes:
                self._supervise(processes, options)
            else:
                stop = StopSignal()
                with stop_on_signals(stop), _staying_on(affinity, 0):
                    run_worker(settings, chosen, stop, affinity=_adaptive(affinity, 0))
        except WorkerFailed as error:
            # not final: a supervisor starts this process again, and its siblings continue
            raise CommandError(str(error), returncode=EXIT_FAILED) from error
        finally:
            remove_logging(handler)

    def _processes(self, requested: int | None) -> int:
        if requested is not None:
            return requested
        # Tests call the command on databases that other processes cannot see, and their command line is not that of a worker.
        return int(from_command_line(self) and can_supervise())

    def _work_supervised(
        self, settings: Settings, chosen: RunOptions, supervised: SupervisedProcess, affinity: AdaptiveAffinity | None
    ) -> None:
        limits = chosen.limits or ProcessLimits(StopSignal())
        stop = limits.stop
        supervised.follow_supervisor(stop)
        signalled = StopSignal()
        signalled.subscribe(stop.set)
        with stop_on_signals(signalled, abort=supervised.in_flight.abandon):
            run_worker(settings, chosen, stop, in_flight=supervised.in_flight, affinity=affinity)
        # If an operator signals only this process, the supervisor replaces it; if the supervisor is stopping too, it does not.
        if limits.is_reached or signalled.is_set():
            raise SystemExit(REPLACED_EXIT_CODE)

    def _supervise(self, processes: int, options: dict[str, Any]) -> None:
        if options["reload"]:
            stop = StopSignal()
            supervisor = Supervisor(own_command_line(), processes, stop, reloads=True)
            with stop_on_signals(stop, abort=supervisor.kill), watching_files(stop, supervisor.restart):
                code = supervisor.run()
        elif from_command_line(self) and django_settings.SETTINGS_MODULE is not None:
            connections.close_all()
            become_supervisor(
                processes,
                log_format=options["log_format"],
                log_level=_level(options),
                loads_settings=bool(django_settings.LOGGING or django_settings.LOGGING_CONFIG != _LOGGING_CONFIG_OF_DJANGO),
            )
        else:
            # Python code that calls the command continues after it.
            code = supervise(own_command_line(), processes)
        if code:
            # The child has printed the reason in a line of its own.
            raise SystemExit(code)
