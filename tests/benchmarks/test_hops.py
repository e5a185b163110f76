"""Bounds on the modules and functions that one message crosses, and the correctness of the measurement."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

import sqlqueue_app
from benchmarks import hops
from benchmarks.databases import PostgreSQL, SQLite
from benchmarks.hops_process import Crossing, Function, Recorder
from sqlqueue_app.messages.headers import read_headers, write_headers
from tests.support.databases import ROOT

# Lower these when the paths get shorter; never raise them.
RECEIVE_MODULES, RECEIVE_FUNCTIONS = 17, 71
SEND_MODULES, SEND_FUNCTIONS = 10, 50


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SQLite]:
    with closing(SQLite(tmp_path_factory.mktemp("hops"))) as database:
        yield database


@pytest.fixture(scope="module")
def received(file: SQLite) -> Crossing:
    return hops.receive(file)


@pytest.fixture(scope="module")
def sent(file: SQLite) -> Crossing:
    return hops.send(file)


def test_received_message_crosses_few_modules(received: Crossing) -> None:
    assert len(received.modules) <= RECEIVE_MODULES, hops.report("receive", received)


def test_received_message_crosses_few_functions(received: Crossing) -> None:
    assert len(received.functions) <= RECEIVE_FUNCTIONS, hops.report("receive", received)


def test_sent_message_crosses_few_modules(sent: Crossing) -> None:
    assert len(sent.modules) <= SEND_MODULES, hops.report("send", sent)


def test_sent_message_crosses_few_functions(sent: Crossing) -> None:
    assert len(sent.functions) <= SEND_FUNCTIONS, hops.report("send", sent)


def test_known_functions_are_listed(received: Crossing, sent: Crossing) -> None:
    assert sent.functions[0] == _function(sqlqueue_app.send)
    assert _function(write_headers) in sent.functions
    assert _function(read_headers) in received.functions
    assert _function(read_headers) not in sent.functions
    assert not sent.outer


def test_every_counted_function_belongs_to_the_package(received: Crossing, sent: Crossing) -> None:
    for crossing in (received, sent):
        assert len(set(crossing.functions)) == len(crossing.functions)
        assert crossing.calls > 0
        for each in crossing.functions:
            assert each.module.startswith("sqlqueue_app.")
            # raises AttributeError for a missing function
            attrgetter(each.name.partition(".<locals>")[0])(import_module(each.module))


def test_postgresql_is_measured() -> None:
    with closing(PostgreSQL(durable=False)) as server:
        assert _function(read_headers) in hops.receive(server).functions
        assert _function(sqlqueue_app.send) in hops.send(server).functions


def test_benchmark_starts_as_a_file() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "hops.py"), "--help"]
    assert "--database" in subprocess.run(command, capture_output=True, text=True, cwd="/", check=True).stdout


@dataclass
class _Value:
    number: int


@contextmanager
def _context() -> Iterator[None]:
    yield


@cache
def _cached() -> int:
    return sum(each for each in (lambda: [_Value(each).number for each in range(3)])())


def _nested() -> None:
    def inner() -> None:
        Path("/").is_absolute()

    with _context():
        inner()
        _cached()


def test_recorder_counts_functions_and_calls() -> None:
    recorder = Recorder(Path(__file__).parent)
    recorder.start()
    _nested()
    _nested()
    crossing = recorder.stop()

    names = ["_nested", "_context", "_nested.<locals>.inner", "_cached"]
    assert crossing.called == [Function(__name__, name) for name in names]
    assert crossing.outer == [Function(__name__, "test_recorder_counts_functions_and_calls")]
    # each round calls _nested, inner, and _context twice, on entry and exit; the cache calls _cached once
    assert crossing.calls == 2 * 4 + 1
    assert crossing.modules == [__name__]


def test_steady_state_is_the_repeated_crossing() -> None:
    usual, rare = Crossing([Function("a", "f")], calls=1), Crossing([Function("b", "g")], calls=2)

    assert hops.steady([usual, rare, *[usual] * hops.STEADY]) == usual
    with pytest.raises(RuntimeError, match=r"no 5 messages in a row .* \[\(1, 1, 1\), \(1, 1, 2\)"):
        hops.steady([usual, rare] * 10)


def test_report_lists_functions_in_order_of_first_call() -> None:
    crossing = Crossing([Function("package.b", "f"), Function("package.long", "g")], outer=[Function("package.a", "loop")], calls=7)

    assert hops.report("receive", crossing).splitlines() == [
        "receive: 3 modules, 3 functions, 7 calls",
        "   1 * package.a     loop",
        "   2   package.b     f",
        "   3   package.long  g",
    ]


def _function(function: Any) -> Function:
    return Function(function.__module__, function.__qualname__)
