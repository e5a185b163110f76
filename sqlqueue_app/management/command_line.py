"""Shared by the commands: the base class with its exit codes, argument types, the queue argument, text and JSON output."""

from __future__ import annotations

import codecs
import json
import os
import sys
from argparse import Action, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from io import TextIOWrapper
from typing import Any, Literal, NoReturn, TextIO, cast

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser, OutputWrapper
from django.db import Error as DjangoDatabaseError

from sqlqueue_app.conf import Settings
from sqlqueue_app.conf.kinds import MAX_INTEGER
from sqlqueue_app.messages.errors import ConfigurationError, DatabaseError, TableMismatch, terminal_line
from sqlqueue_app.status.instances import read_instances
from sqlqueue_app.status.queues import known_queues, table_of_argument
from sqlqueue_app.status.texts import Unit, two_units
from sqlqueue_app.tables.connections import error_remedy
from sqlqueue_app.tables.queue import QueueTable

EXIT_USAGE = 2
# That of a program that SIGPIPE has ended, as a shell shows it.
EXIT_BROKEN_PIPE = 141


class ListAction(Action):
    """An option that may be repeated or take several values; all values form one list.

    `continues` decides which further values belong to the option, for commands with a positional argument behind it.
    """

    def __init__(self, *args: Any, continues: Callable[[str], bool] | None = None, **options: Any) -> None:
        if continues is None:
            options["nargs"] = "+"
        super().__init__(*args, **options)
        self.continues = continues

    def __call__(self, parser: ArgumentParser, namespace: Namespace, values: Any, option_string: str | None = None) -> None:
        more = values if self.continues is None else [values]
        setattr(namespace, self.dest, [*(getattr(namespace, self.dest) or ()), *more])


class OneLineParser(CommandParser):
    """A parser whose errors are one line, without the usage text."""

    usage_exit_code = EXIT_USAGE

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        """Like argparse, with `--header A=1 B=2` spread into one option per value."""
        return super().parse_args(None if args is None else list(self._spread(args)), namespace)

    def _spread(self, args: Sequence[str]) -> Iterator[str]:
        spread = {
            option: action.continues
            for action in self._actions
            if isinstance(action, ListAction) and action.continues is not None
            for option in action.option_strings
        }
        option, values = "", 0
        for text in map(str, args):
            if text.startswith("-"):
                option, values = text, 0
            else:
                values += 1
                if values > 1 and option in spread and spread[option](text):
                    yield option
            yield text

    def error(self, message: str) -> NoReturn:
        """Exit with code 2, or that of the command; raise CommandError if Python code called the command."""
        if not self.called_from_command_line:
            raise CommandError(f"Error: {message}", returncode=self.usage_exit_code)
        self.exit(self.usage_exit_code, f"{self.prog}: error: {message} (try --help)\n")


class _OutputFailed(Exception):
    """The output cannot be written; the cause is the OSError."""


class _Output(OutputWrapper):
    """Standard output, with errors that no other file raises."""

    def write(self, *args: Any, **options: Any) -> None:  # type: ignore[override]
        with _as_output_failed():
            super().write(*args, **options)

    def flush(self) -> None:
        with _as_output_failed():
            super().flush()


@contextmanager
def _as_output_failed() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _OutputFailed from error


def _null_stream(mode: Literal["r", "w"] = "w") -> TextIO:
    """A stream for one that was closed before the start; its number is free, and must not become that of a pipe or a database."""
    stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115 - for the life of the process
    os.set_inheritable(stream.fileno(), True)
    return stream


class SqlQueueCommand(BaseCommand):
    """Base class of all commands.

    An invalid argument or ConfigurationError is one line on stderr and exit code 2; a database error is one line and exit code 1.
    System checks do not run, because `get_settings()` raises all errors of the settings.
    """

    requires_system_checks: list[str] = []  # noqa: RUF012 - declared as in Django
    usage_exit_code = EXIT_USAGE
    committed = ""
    """What the command has committed, for the error if its output cannot be written."""
    _shows_progress = False

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        """Django's parser with one-line errors."""
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        parser.__class__ = OneLineParser
        cast(OneLineParser, parser).usage_exit_code = self.usage_exit_code
        return parser

    def execute(self, *args: Any, **options: Any) -> Any:
        """Run the command; errors that a user can fix become CommandError with the exit code."""
        if from_command_line(self):
            self._open_streams()
        else:
            options = self._read_options(options)
        try:
            result = super().execute(*args, **options)
            # At the exit of the interpreter, an error would have a traceback.
            self.stdout.flush()
            return result
        except _OutputFailed as error:
            raise self._output_failed(cast(OSError, error.__cause__)) from error
        except (ConfigurationError, ImproperlyConfigured) as error:
            raise CommandError(one_line(str(error)), returncode=self.usage_exit_code) from error
        except (DatabaseError, DjangoDatabaseError) as error:
            raise CommandError(one_line(f"{error}{error_remedy(error)}"), returncode=1) from error

    def _open_streams(self) -> None:
        sys.stdin = sys.stdin or _null_stream("r")
        sys.stdout = sys.stdout or _null_stream()
        if isinstance(sys.stdout, TextIOWrapper):
            # A terminal or file may have another encoding than UTF-8: on Windows even files have.
            sys.stdout.reconfigure(errors="backslashreplace")
        self.stdout = _Output(sys.stdout)
        if sys.stderr is None:
            sys.stderr = _null_stream()
            self.stderr = OutputWrapper(sys.stderr)

    def _output_failed(self, error: OSError) -> BaseException:
        """The exception that ends the command: silently, as other programs end, if the reader of a pipe has gone."""
        # The interpreter flushes what is left.
        null = _null_stream()
        os.dup2(null.fileno(), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError) and not self.committed:
            return SystemExit(EXIT_BROKEN_PIPE)
        done = f"; {self.committed}" if self.committed else ""
        return CommandError(f"the output cannot be written: {error.strerror or error}{done}", returncode=1)

    def _read_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """Parse options of `call_command`, which Django passes on unparsed, as on a command line."""
        actions = self.create_parser("", "")._actions
        return {**options, **{each.dest: self._read_option(each, options[each.dest]) for each in actions if each.dest in options}}

    def _read_option(self, action: Action, given: Any) -> Any:
        if given is None or given == action.default:
            return given
        if isinstance(action, ListAction):
            return [self._read_value(action, each) for each in (given if isinstance(given, (list, tuple)) else [given])]
        return self._read_value(action, given)

    def _read_value(self, action: Action, given: Any) -> Any:
        name = "/".join(action.option_strings) or action.dest
        value = given
        # Any other value, such as a timedelta, is already parsed.
        if callable(action.type) and isinstance(given, (str, int, float)) and not isinstance(given, bool):
            try:
                value = action.type(str(given))
            except ArgumentTypeError as error:
                raise self.usage_error(f"Error: argument {name}: {error}") from error
        if action.choices is not None and value not in action.choices:
            raise self.usage_error(f"Error: argument {name}: invalid choice: {given!r} (choose from {', '.join(action.choices)})")
        return value

    def usage_error(self, message: str) -> CommandError:
        """The error for arguments that do not fit together, to be raised by the command."""
        return CommandError(message, returncode=self.usage_exit_code)

    def write_json(self, document: Any) -> None:
        """Print a document for programs: indented, keys in order, Unicode unescaped if the output is UTF-8."""
        is_utf8 = codecs.lookup(getattr(self.stdout, "encoding", None) or "utf-8").name == "utf-8"
        self.stdout.write(json.dumps(document, indent=2, ensure_ascii=not is_utf8, default=_plain))

    def write_progress(self, done: int, total: int, what: str) -> None:
        """Show the progress, and end its line when all is done."""
        self.show_progress(f"{done:,} of {total:,} {what}")
        if done >= total:
            self.end_progress()

    def show_progress(self, text: str) -> None:
        """Update the progress line on a terminal; silent if stderr is not a terminal."""
        if sys.stderr.isatty():
            self._shows_progress = True
            self.stderr.write(f"\r{text}", ending="")
            self.stderr.flush()

    def end_progress(self) -> None:
        """End the progress line, if there is one."""
        if self._shows_progress:
            self.stderr.write("")
            self._shows_progress = False


def from_command_line(command: BaseCommand) -> bool:
    """Whether a command line runs the command, not Python code by `call_command`."""
    return bool(getattr(command, "_called_from_command_line", False))


def add_format_argument(parser: CommandParser, *more: str) -> None:
    """Add `--format text|json` with further formats of the command."""
    parser.add_argument(
        "--format", choices=("text", "json", *more), default="text", help="how to print the result (default: %(default)s)"
    )


def whole_number(minimum: int, maximum: int = MAX_INTEGER) -> Callable[[str], int]:
    """An argument type: a whole number in a range."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise ArgumentTypeError(f"expected a whole number, got {text!r}") from None
        if not minimum <= number <= maximum:
            raise ArgumentTypeError(f"expected at least {minimum} and at most {maximum}, got {number}")
        return number

    return parse


def not_blank(expected: str) -> Callable[[str], str]:
    """An argument type: a text that is not blank; `expected` completes "expected …"."""

    def parse(text: str) -> str:
        if not text.strip():
            raise ArgumentTypeError(f"expected {expected}, got {text!r}")
        return text

    return parse


def seconds(text: str) -> timedelta:
    """An argument type: a duration in seconds, not negative; fractions allowed."""
    try:
        duration = timedelta(seconds=float(text))
    except (ValueError, OverflowError):
        raise ArgumentTypeError(f"expected a number of seconds, got {text!r}") from None
    if duration < timedelta():
        raise ArgumentTypeError(f"expected seconds of 0 or more, got {text!r}")
    return duration


def one_line(text: str) -> str:
    """The text without line breaks, which error messages of databases contain."""
    return " ".join(text.split())


def _plain(value: object) -> object:
    return str(getattr(value, "isoformat", value.__str__)())


_UNITS = {Unit.DAYS: "d", Unit.HOURS: "h", Unit.MINUTES: "min", Unit.SECONDS: "s"}


def add_queue_argument(parser: CommandParser) -> None:
    """Add the queue argument: a literal name or an address."""
    parser.add_argument("queue", metavar="QUEUE", help="the literal name of a queue's table, or an address such as 'Sales@[sales]'")


def named_table(settings: Settings, text: str) -> QueueTable:
    """The table that the argument names. ConfigurationError if it is not a queue, with the nearest name; DatabaseErrors."""
    _statuses, rows, _problem = read_instances()
    try:
        return table_of_argument(settings, text, known_queues(settings, rows))
    except TableMismatch as error:
        raise ConfigurationError(str(error)) from error


def columns(rows: Iterable[Sequence[str]], *, right: frozenset[int] = frozenset()) -> list[str]:
    """Rows of cells as lines with aligned columns; positions in `right` are right-aligned."""
    cells = [[terminal_line(cell) for cell in row] for row in rows]
    widths = [max(len(row[index]) for row in cells) for index in range(len(cells[0]))] if cells else []
    return [
        "  ".join(
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def duration_text(value: timedelta) -> str:
    """The two largest units in English; negative durations with a minus sign."""
    negative, parts = two_units(value)
    return ("-" if negative else "") + " ".join(f"{amount} {_UNITS[unit]}" for amount, unit in parts)
