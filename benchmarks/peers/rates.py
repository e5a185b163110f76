"""The rates of receiving and sending."""

from __future__ import annotations

from benchmarks.measures import rate
from benchmarks.peers.catalogue import Variant
from benchmarks.peers.plays import Play

LEAST = 50
"""Messages of a turn, however slow a peer is."""


def receiving(play: Play, variant: Variant, seconds: float) -> float:
    """Messages per second of one worker, without the first twentieth. Raises RuntimeError if not all were handled."""
    play.clear()
    sent, _ = play.send(max(LEAST, int(variant.pace * seconds)), many=True)
    play.settle()
    notes = play.notes()
    worker = play.start(variant, notes, together=True)
    try:
        notes.wait_for(len(sent), worker)
    finally:
        worker.kill()
    return rate([note.seconds for note in notes.all()])


def sending(play: Play, seconds: float, *, many: bool) -> float:
    """Messages per second of one process that sends one by one or in bulk."""
    play.clear()
    play.send(5)
    _, answer = play.send(MAX_MESSAGES, seconds=seconds, many=many)
    return answer["sent"] / answer["seconds"]


MAX_MESSAGES = 100_000
"""More than any peer sends in the given time."""
