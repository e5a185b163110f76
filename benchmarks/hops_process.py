"""What runs in the measured processes: the recorder, the handler that switches it, and the sender.

A worker finds the handler by naming this module in HANDLERS. `python -m benchmarks.hops_process` sends.
"""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import django

import sqlqueue_app
from benchmarks.messages import MESSAGE_TYPE
from sqlqueue_app import handles, message_type

WARM_UP = 40
"""Messages that are not recorded: they open connections, fill caches and let the ramp-up settle."""

RECORDED = 20
"""Messages that are recorded, one after the other."""

RESULT = "SQLQUEUE_BENCH_HOPS"
"""Names the file to which the handler writes what it recorded."""

PACKAGE = Path(sqlqueue_app.__file__).parent

_ANONYMOUS = re.compile(r"(^|(\.<locals>)?\.)<(lambda|genexpr|listcomp|setcomp|dictcomp)>.*")


@message_type("Bench.Order")
@dataclass(frozen=True, slots=True)
class Order:
    """What is sent; the settings have a route for its type."""

    order_id: str
    placed_at: datetime
    total: Decimal


@dataclass(frozen=True, slots=True)
class Function:
    """A function by its module and its qualified name."""

    module: str
    name: str


@dataclass(slots=True)
class Crossing:
    """One pass through the package.

    `outer` holds the functions that were already running when the pass began and continued without a new call, such as the loop
    of a thread, innermost first. `called` holds the others in the order of their first call.
    """

    called: list[Function] = field(default_factory=list)
    outer: list[Function] = field(default_factory=list)
    calls: int = 0

    @property
    def functions(self) -> list[Function]:
        """All distinct functions: the outer ones, the outermost first, then the called ones."""
        return [*reversed(self.outer), *self.called]

    @property
    def modules(self) -> list[str]:
        """The distinct modules of the functions, in the same order."""
        return list(dict.fromkeys(each.module for each in self.functions))


class Recorder:
    """Records the functions of one package that the calling thread enters between `start` and `stop`.

    - A function counts if its source file is below `package`. Methods that `dataclass` generates have no file and do not count.
    - Lambdas, comprehensions and generator expressions belong to the function around them, and entering one is not a call.
      Newer Pythons inline comprehensions, so the numbers do not depend on the version.
    - Decorators, `contextlib` and other code outside of the package are passed over. What they call inside counts.
    - A generator is one function. Resuming it is one more call: a context manager written as a generator counts two calls.
    """

    def __init__(self, package: Path = PACKAGE) -> None:
        self._below = f"{package}{os.sep}"
        self._functions: dict[tuple[str, CodeType], Function | None] = {}
        self._called: dict[Function, None] = {}
        self._resumed: dict[Function, None] = {}
        self._calls = 0

    def start(self) -> None:
        """Begin a new crossing."""
        self._called, self._resumed, self._calls = {}, {}, 0
        sys.setprofile(self._note)

    def stop(self) -> Crossing:
        """End the crossing and return it."""
        sys.setprofile(None)
        outer = [each for each in self._resumed if each not in self._called]
        return Crossing(list(self._called), outer, self._calls)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and (called := self._function(frame)) is not None:
            self._called.setdefault(called)
            self._calls += not frame.f_code.co_name.startswith("<")
        elif event == "return" and frame.f_back is not None and (resumed := self._function(frame.f_back)) is not None:
            self._resumed.setdefault(resumed)

    def _function(self, frame: FrameType) -> Function | None:
        code = frame.f_code
        # equal code of two files compares equal
        key = (code.co_filename, code)
        if key not in self._functions:
            is_ours = code.co_filename.startswith(self._below)
            name = _ANONYMOUS.sub("", code.co_qualname) or "<module>"
            self._functions[key] = Function(frame.f_globals["__name__"], name) if is_ours else None
        return self._functions[key]


class _Handler:
    """Ends a crossing and begins the next one each time a message arrives; the endpoint has one receiving thread."""

    def __init__(self) -> None:
        self._recorder = Recorder()
        self._received = 0
        self._crossings: list[Crossing] = []

    def __call__(self, _message: Any, _context: Any) -> None:
        recorded = self._received - WARM_UP
        self._received += 1
        if recorded > RECORDED:
            return
        if recorded > 0:
            self._crossings.append(self._recorder.stop())
        if recorded == RECORDED:
            _write(Path(os.environ[RESULT]), self._crossings)
        elif recorded >= 0:
            self._recorder.start()


handles(MESSAGE_TYPE)(_Handler())


def _write(file: Path, crossings: list[Crossing]) -> None:
    # renamed when complete, because the reader waits for the file to appear
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps([asdict(each) for each in crossings]), encoding="utf-8")
    partial.rename(file)


def main() -> None:
    """Send in a warmed-up process, outside of a transaction, and print the crossings."""
    django.setup()
    # Models can be imported only now.
    from sqlqueue_app import send  # noqa: PLC0415

    recorder = Recorder()
    crossings: list[Crossing] = []
    for number in range(WARM_UP + RECORDED):
        message = Order(str(number), datetime.now(UTC), Decimal("129.90"))
        recorder.start()
        send(message)
        crossing = recorder.stop()
        if number >= WARM_UP:
            crossings.append(crossing)
    print(json.dumps([asdict(each) for each in crossings]))


if __name__ == "__main__":
    main()
