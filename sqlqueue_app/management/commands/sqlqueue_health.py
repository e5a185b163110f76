"""`manage.py sqlqueue_health`: health checks for monitoring systems."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import Any

from django.core.management.base import CommandError, CommandParser

from sqlqueue_app.conf import get_settings
from sqlqueue_app.management.command_line import ListAction, SqlQueueCommand, add_format_argument, from_command_line, one_line
from sqlqueue_app.management.output import health_document, health_lines, nagios_line, unknown
from sqlqueue_app.monitoring.health import Bounds, Health, Level, Limits, read_health

_UPPER_LIMITS = (
    ("length", "N", "messages in a queue that is received from"),
    ("age", "S", "seconds since the first message of such a queue was due or sent"),
    ("failed", "N", "messages in an error queue that are not archived"),
    ("expired", "N", "expired messages in a queue that are not purged yet"),
    ("overdue", "N", "delayed messages of an endpoint that no worker has moved"),
)


def bounds(*, whole: bool = True, least: bool = False) -> Callable[[str], Bounds]:
    """An argument type: `WARNING:CRITICAL`, or one number, which is critical."""

    def parse(text: str) -> Bounds:
        parts = text.split(":")
        form = "a whole number" if whole else "a number"
        wanted = f"expected {form} of 0 or more, or two of them, WARNING:CRITICAL, got {text!r}"
        try:
            numbers = [float(int(part) if whole else float(part)) for part in parts]
        except (ValueError, OverflowError):
            raise ArgumentTypeError(wanted) from None
        if len(numbers) > 2 or any(number < 0 or not math.isfinite(number) for number in numbers):
            raise ArgumentTypeError(wanted)
        if len(numbers) == 1:
            return Bounds(critical=numbers[0], least=least)
        warning, critical = numbers
        if (warning < critical) if least else (warning > critical):
            order = "at least" if least else "at most"
            raise ArgumentTypeError(f"expected a warning limit of {order} the critical limit, got {text!r}")
        return Bounds(warning, critical, least)

    return parse


class Command(SqlQueueCommand):
    """Parses arguments; `read_health` checks. Every error is exit code 3."""

    help = (
        "Check queues, endpoints and instances for a monitoring system. Exit code 0: all is well, 1: warning, 2: critical, "
        "3: unknown (a wrong argument or setting, or the database is unreachable). Takes and locks nothing."
    )
    usage_exit_code = int(Level.UNKNOWN)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--queue", metavar="NAME", action=ListAction, default=None, help="only these queues; may be repeated")
        parser.add_argument(
            "--endpoint", metavar="E", action=ListAction, default=None, help="only these endpoints; may be repeated"
        )
        for name, metavar, words in _UPPER_LIMITS:
            parser.add_argument(
                f"--max-{name}",
                metavar=f"{metavar}[:{metavar}]",
                type=bounds(whole=metavar == "N"),
                help=f"at most this many {words}: a critical limit, or WARNING:CRITICAL",
            )
        parser.add_argument(
            "--min-instances",
            metavar="N[:N]",
            type=bounds(least=True),
            help="at least this many live instances of each endpoint: a critical limit, or WARNING:CRITICAL",
        )
        add_format_argument(parser, "nagios")

    def execute(self, *args: Any, **options: Any) -> Any:
        """Like other commands, with every error as unknown."""
        try:
            return super().execute(*args, **options)
        except CommandError as error:
            self._refuse(str(error), options, error)
        except Exception as error:  # noqa: BLE001 - Python's exit code 1 would count as a warning
            self._refuse(f"{type(error).__name__}: {error}", options, error)

    def _refuse(self, text: str, options: dict[str, Any], error: Exception) -> None:
        line = one_line(text)
        # Monitoring systems show the standard output.
        if options.get("format") in ("json", "nagios") and from_command_line(self):
            self._print(unknown(line), options["format"])
            raise SystemExit(int(Level.UNKNOWN))
        raise CommandError(line, returncode=int(Level.UNKNOWN)) from error

    def handle(self, *args: Any, **options: Any) -> None:
        limits = Limits(
            **{name: options[f"max_{name}"] for name, _metavar, _words in _UPPER_LIMITS}, instances=options["min_instances"]
        )
        queues, endpoints = options["queue"] or (), options["endpoint"] or ()
        health = read_health(get_settings(), limits, queues=queues, endpoints=endpoints)
        self._print(health, options["format"])
        if health.level is not Level.OK:
            raise SystemExit(int(health.level))

    def _print(self, health: Health, form: str) -> None:
        if form == "json":
            self.write_json(health_document(health))
        elif form == "nagios":
            self.stdout.write(nagios_line(health))
        else:
            for line in health_lines(health):
                self.stdout.write(line)
