"""What the commands of sqlqueue share: how they refuse, and in which format they print."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

from django.core.management.base import BaseCommand, CommandError, CommandParser

from sqlqueue_app.messages.errors import ConfigurationError, DatabaseError

EXIT_USAGE = 2


class OneLineParser(CommandParser):
    """Refuses an argument in one line, without the synopsis that argparse puts before it."""

    def error(self, message: str) -> NoReturn:
        """Exit with code 2 on a command line; raise CommandError where Python code called the command."""
        if not self.called_from_command_line:
            raise CommandError(f"Error: {message}", returncode=EXIT_USAGE)
        self.exit(EXIT_USAGE, f"{self.prog}: error: {message} (try --help)\n")


class SqlQueueCommand(BaseCommand):
    """Base of all commands.

    A bad argument and a ConfigurationError, AddressErrors among them, are one line on stderr and exit code 2; what the database
    refused is one line and exit code 1. The system checks do not run: `get_settings()` raises all errors of the settings itself.
    """

    requires_system_checks: list[str] = []  # noqa: RUF012 - Django's own form
    usage_exit_code = EXIT_USAGE

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        """Django's parser, but for how it refuses."""
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        parser.__class__ = OneLineParser
        return parser

    def execute(self, *args: Any, **options: Any) -> Any:
        """Run the command; errors that a user can mend come out as CommandError with the exit code."""
        try:
            return super().execute(*args, **options)
        except ConfigurationError as error:
            raise CommandError(one_line(str(error)), returncode=self.usage_exit_code) from error
        except DatabaseError as error:
            raise CommandError(one_line(str(error)), returncode=1) from error

    def usage_error(self, message: str) -> CommandError:
        """The error of arguments that do not fit together, for the command to raise."""
        return CommandError(message, returncode=self.usage_exit_code)

    def write_json(self, document: Any) -> None:
        """Print a document for machines: indented, keys in their order, Unicode as it is."""
        self.stdout.write(json.dumps(document, indent=2, ensure_ascii=False, default=_plain))

    def write_progress(self, done: int, total: int, what: str) -> None:
        """Rewrite one line of progress on a terminal; silent where stderr is a file or a pipe."""
        if not sys.stderr.isatty():
            return
        end = "\n" if done >= total else ""
        self.stderr.write(f"\r{done:,} of {total:,} {what}", ending=end)
        self.stderr.flush()


def from_command_line(command: BaseCommand) -> bool:
    """Whether a command line runs the command, and not Python code by `call_command`."""
    return bool(getattr(command, "_called_from_command_line", False))


def add_format_argument(parser: CommandParser, *more: str) -> None:
    """`--format text|json`, and further formats that the command knows."""
    parser.add_argument(
        "--format", choices=("text", "json", *more), default="text", help="how to print the result (default: %(default)s)"
    )


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """A type for arguments: a whole number in a range; anything else is refused in words."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise ArgumentTypeError(f"expected a whole number, got {text!r}") from None
        if number < least or (most is not None and number > most):
            upper = "" if most is None else f" and at most {most}"
            raise ArgumentTypeError(f"expected at least {least}{upper}, got {number}")
        return number

    return parse


def seconds(text: str) -> timedelta:
    """A type for arguments: a duration in seconds, fractions allowed, not negative."""
    try:
        duration = timedelta(seconds=float(text))
    except (ValueError, OverflowError):
        raise ArgumentTypeError(f"expected a number of seconds, got {text!r}") from None
    if duration < timedelta():
        raise ArgumentTypeError(f"expected seconds of 0 or more, got {text!r}")
    return duration


def one_line(text: str) -> str:
    """The text without line breaks, as error messages of databases have them."""
    return " ".join(text.split())


def _plain(value: object) -> object:
    isoformat = getattr(value, "isoformat", None)
    return isoformat() if isoformat is not None else str(value)
