"""What the commands of sqlqueue share: how they refuse, and in which format they print."""

from __future__ import annotations

import json
import sys
from argparse import Action, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NoReturn, cast

from django.core.management.base import BaseCommand, CommandError, CommandParser

from sqlqueue_app.messages.errors import ConfigurationError, DatabaseError

EXIT_USAGE = 2


class Several(Action):
    """An option that may be given several times, or once with several values; all values are one list.

    `continues` says which further values after the first are its own, for commands whose positional argument may stand behind it.
    """

    def __init__(self, *args: Any, continues: Callable[[str], bool] | None = None, **options: Any) -> None:
        if continues is None:
            options["nargs"] = "+"
        super().__init__(*args, **options)
        self.continues = continues

    def __call__(self, parser: ArgumentParser, namespace: Namespace, values: Any, option_string: str | None = None) -> None:
        """Add what was read."""
        more = values if self.continues is None else [values]
        setattr(namespace, self.dest, [*(getattr(namespace, self.dest) or ()), *more])


class OneLineParser(CommandParser):
    """Refuses an argument in one line, without the synopsis that argparse puts before it."""

    usage_exit_code = EXIT_USAGE

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        """As argparse does, with each value of `--header A=1 B=2` as one of an option of its own."""
        return super().parse_args(None if args is None else list(self._spread(args)), namespace)

    def _spread(self, args: Sequence[str]) -> Iterator[str]:
        spread = {
            option: action.continues
            for action in self._actions
            if isinstance(action, Several) and action.continues is not None
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
        """Exit with code 2, or that of the command, on a command line; raise CommandError where Python code called the command."""
        if not self.called_from_command_line:
            raise CommandError(f"Error: {message}", returncode=self.usage_exit_code)
        self.exit(self.usage_exit_code, f"{self.prog}: error: {message} (try --help)\n")


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
        cast(OneLineParser, parser).usage_exit_code = self.usage_exit_code
        return parser

    def execute(self, *args: Any, **options: Any) -> Any:
        """Run the command; errors that a user can mend come out as CommandError with the exit code."""
        if not from_command_line(self):
            options = self._read_options(options)
        try:
            return super().execute(*args, **options)
        except ConfigurationError as error:
            raise CommandError(one_line(str(error)), returncode=self.usage_exit_code) from error
        except DatabaseError as error:
            raise CommandError(one_line(str(error)), returncode=1) from error

    def _read_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """What Python code gave to `call_command` by name: Django hands it on unread, so it is read here as a command line is."""
        actions = self.create_parser("", "")._actions
        return {**options, **{each.dest: self._read_option(each, options[each.dest]) for each in actions if each.dest in options}}

    def _read_option(self, action: Action, given: Any) -> Any:
        if given is None or given == action.default:
            return given
        if isinstance(action, Several):
            given = given if isinstance(given, (list, tuple)) else [given]
            return [self._read_value(action, each) for each in given]
        return self._read_value(action, given)

    def _read_value(self, action: Action, given: Any) -> Any:
        name = "/".join(action.option_strings) or action.dest
        value = given
        # What is no text or number, such as a timedelta, is what the text would have become.
        if callable(action.type) and isinstance(given, (str, int, float)) and not isinstance(given, bool):
            try:
                value = action.type(str(given))
            except ArgumentTypeError as error:
                raise self.usage_error(f"Error: argument {name}: {error}") from error
        if action.choices is not None and value not in action.choices:
            raise self.usage_error(f"Error: argument {name}: invalid choice: {given!r} (choose from {', '.join(action.choices)})")
        return value

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
