"""Signals reach a worker at any point of its main thread."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.worker.stop_signals import stop_on_signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_sets_the_stop(number: signal.Signals) -> None:
    stop = StopSignal()
    before = signal.getsignal(number)
    with stop_on_signals(stop):
        os.kill(os.getpid(), number)
        assert stop.wait(60)
    assert signal.getsignal(number) is before


def test_signal_during_the_stop_signals_lock_is_no_deadlock() -> None:
    stop = StopSignal()
    with stop_on_signals(stop):
        with stop._event._cond:  # type: ignore[attr-defined]  # as inside of its wait, where a signal may come at any step
            os.kill(os.getpid(), signal.SIGTERM)
            assert not stop.is_set()
        assert stop.wait(60)


def test_signal_to_another_thread_stops_a_waiting_main_thread() -> None:
    """Python runs signal handlers only in the main thread, and a lock wait is not interrupted by a signal that another thread
    received, or that came just before the wait.
    """
    stop = StopSignal()
    with stop_on_signals(stop):
        thread = threading.Thread(target=lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM))
        thread.start()
        # The main thread may be anywhere in the wait; without a timeout it would wait without end.
        assert stop.wait(60)
        thread.join(60)
    assert not thread.is_alive()


# The clock is read once per signal. The second SIGTERM comes 0.9 s after the first, the third one after a second.
REPEATS = """
import os, signal, sys, threading
import django
django.setup()
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.worker.stop_signals import stop_on_signals

times, asked = iter([10.0, 10.9, 11.0]), threading.Semaphore(0)

def clock():
    asked.release()
    return next(times)

with stop_on_signals(StopSignal(), clock=clock):
    for number in map(int, sys.argv[1:]):
        os.kill(os.getpid(), number)
        asked.acquire()
        print(number, flush=True)
    threading.Event().wait(60)
"""


@pytest.mark.parametrize(
    ("numbers", "survived"),
    [([signal.SIGTERM] * 3, 2), ([signal.SIGINT, signal.SIGTERM], 1)],
    ids=["a repeat within a second is the same signal", "another signal is the second one"],
)
def test_second_signal_aborts(numbers: list[signal.Signals], survived: int) -> None:
    command = [sys.executable, "-c", REPEATS, *(str(int(each)) for each in numbers)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert ended.returncode == 128 + numbers[-1]
    # The last one may end the process before it prints.
    assert len(ended.stdout.split()) >= survived
    assert ended.stderr == "second signal: aborting, messages in progress return to their queues\n"


def test_second_signal_aborts_without_a_reader_of_stderr() -> None:
    """Ctrl-C ends tee, too, in `run_sqlqueue_worker 2>&1 | tee worker.log`."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", REPEATS, *(str(int(each)) for each in (signal.SIGINT, signal.SIGTERM))]
    try:
        ended = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=writer, timeout=30)
    finally:
        os.close(writer)

    assert ended.returncode == 128 + signal.SIGTERM


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_signal_to_a_forked_child_ends_only_the_child() -> None:
    stop = StopSignal()
    reading, writing = os.pipe()
    with stop_on_signals(stop):
        child = os.fork()
        if not child:
            try:
                signal.alarm(60)
                os.write(writing, b"ready")
                signal.pause()
            finally:
                os._exit(1)
        assert os.read(reading, 5) == b"ready"
        os.kill(child, signal.SIGTERM)
        assert os.waitpid(child, 0) == (child, signal.SIGTERM)
        assert not stop.is_set()
    os.close(reading)
    os.close(writing)


def test_signal_thread_ends_without_a_signal() -> None:
    stop = StopSignal()
    with stop_on_signals(stop):
        assert "sqlqueue-signals" in {thread.name for thread in threading.enumerate()}
    assert "sqlqueue-signals" not in {thread.name for thread in threading.enumerate()}
    assert not stop.is_set()


def test_signals_are_left_alone_outside_the_main_thread() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[object] = []

    def run() -> None:
        with stop_on_signals(StopSignal()):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert seen == [before]
