"""The same kills for every peer: two workers, of which the one that takes a marked message is killed with all its processes.

Half of the kills happen before the handler writes its row, half after it and before the return, where the guarantees differ.
The other worker keeps running, so no time includes the start of a process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.peers.notes import Note, Notes
from benchmarks.peers.plays import Play
from benchmarks.peers.workers import Worker

CONCURRENCY = 2
MOMENTS = ("before", "after")
_READY_SECONDS = 30.0
_BETWEEN_SECONDS = 0.2
_POLL_SECONDS = 0.01


@dataclass(slots=True)
class Killed:
    """The outcomes of the messages of one peer."""

    kills: int = 0
    messages: int = 0
    lost: int = 0
    """Messages never handled: without a row of a handler."""
    twice: int = 0
    """More than one row of a handler."""
    again: list[float] = field(default_factory=list)
    """Seconds from each kill until a handler was called again with the message of the killed one."""
    never: int = 0
    """Messages of a killed handler that were not redelivered within the waiting time."""
    waited: float = 0.0
    """Seconds from the last kill to the end."""
    problem: str = ""
    """Why there were no more kills."""


class _Strikes:
    """The kills of one peer."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self.notes: Notes = play.notes()
        self.workers: dict[str, Worker] = {}
        self.killed: dict[int, float] = {}
        self.sent: list[int] = []
        self.problem = ""
        self._started = 0

    def start(self) -> None:
        """Start another worker with a new name."""
        self._started += 1
        name = f"w{self._started}"
        self.workers[name] = self.play.start(self.play.peer.at_rest(CONCURRENCY), self.notes, name)

    def ready(self) -> None:
        """Send ordinary messages until every worker has handled one. Raises RuntimeError if this does not happen."""
        end = time.monotonic() + _READY_SECONDS
        while not set(self.workers) <= {note.worker for note in self.notes.all()}:
            if time.monotonic() > end:
                raise RuntimeError(
                    f"{self.play.peer.name}: not all of its workers work: {[w.log_tail() for w in self.workers.values()]}"
                )
            self._send("plain", 8)
            threading.Event().wait(_BETWEEN_SECONDS)

    def strike(self, moment: str) -> None:
        """Send one marked message and kill the worker that takes it."""
        (number,) = self._send(moment, 1)
        end = time.monotonic() + _READY_SECONDS
        while (standing := self._standing(number)) is None:
            if time.monotonic() > end:
                # the message counts, but no worker reached the point of the kill
                return
            threading.Event().wait(_POLL_SECONDS)
        self.killed[number] = time.monotonic()
        self.workers.pop(standing.worker).kill()
        self.start()

    def _send(self, moment: str, count: int) -> range:
        sent, _ = self.play.send(count, many=count > 1, extra={"moment": moment})
        self.sent.extend(sent)
        return sent

    def _standing(self, number: int) -> Note | None:
        return next((note for note in self.notes.all() if note.what == "k" and note.number == number), None)

    def again(self) -> dict[int, float]:
        """Seconds from the kill to the next call, by the number of the message."""
        found: dict[int, float] = {}
        for note in self.notes.all():
            killed_at = self.killed.get(note.number)
            if note.what == "h" and killed_at is not None and note.seconds > killed_at:
                found.setdefault(note.number, note.seconds - killed_at)
        return found

    def rows(self) -> dict[int, int]:
        """The number of rows of each message."""
        with self.play.connect() as connection:
            rows = connection.execute("SELECT number, count(*) FROM bench_done GROUP BY number").fetchall()
        return {int(number): int(count) for number, count in rows}

    def is_over(self) -> bool:
        """Whether all messages are settled."""
        return len(self.again()) == len(self.killed) and self.rows().keys() >= set(self.sent)

    def found(self) -> Killed:
        """The present results."""
        rows, again = self.rows(), self.again()
        return Killed(
            kills=len(self.killed),
            messages=len(self.sent),
            lost=sum(number not in rows for number in self.sent),
            twice=sum(count > 1 for count in rows.values()),
            again=[again[number] for number in sorted(again)],
            never=len(self.killed) - len(again),
            waited=time.monotonic() - max(self.killed.values(), default=time.monotonic()),
            problem=self.problem,
        )

    def close(self) -> None:
        """Stop its workers."""
        for worker in self.workers.values():
            worker.kill()


def measure(plays: Sequence[Play], *, kills: int, patience: float, log_line: Callable[[str], None]) -> dict[str, Killed]:
    """Results by key of the peer. Waits at most `patience` seconds after the last kill; the slowest peers are killed first."""
    order = sorted(plays, key=lambda play: -(play.peer.returns or 0.0))
    struck: list[_Strikes] = []
    try:
        for play in order:
            play.clear()
            strikes = _Strikes(play)
            struck.append(strikes)
            try:
                _kill(strikes, kills)
            except RuntimeError as problem:
                # the others are still measured
                strikes.problem = str(problem)
                log_line(strikes.problem)
            again = len(strikes.again())
            log_line(f"{play.peer.name}: {len(strikes.killed)} kills, {again} of their messages were handled again already")
        _wait(struck, patience, log_line)
        return {strikes.play.peer.key: strikes.found() for strikes in struck}
    finally:
        for strikes in struck:
            strikes.close()


def _kill(strikes: _Strikes, kills: int) -> None:
    for _ in range(2):
        strikes.start()
    for number in range(kills):
        strikes.ready()
        strikes.strike(MOMENTS[number % len(MOMENTS)])
    strikes.ready()


def _wait(struck: Sequence[_Strikes], patience: float, log_line: Callable[[str], None]) -> None:
    """Wait until all peers that redeliver have handled the messages."""
    end, open_still = time.monotonic() + patience, list(struck)
    while time.monotonic() < end:
        open_still = [strikes for strikes in struck if strikes.play.peer.returns is not None and not strikes.is_over()]
        if not open_still:
            return
        threading.Event().wait(1.0)
    log_line(f"not handled again after {patience:g} s: {', '.join(each.play.peer.name for each in open_still)}")
