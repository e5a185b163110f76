"""The comparison with peers, apart from the peers themselves, which are not installed here."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.messages import body
from benchmarks.peers import page, report, results
from benchmarks.peers.__main__ import parse, versions, write
from benchmarks.peers.adapters import handling, serving
from benchmarks.peers.catalogue import OURS, PEERS
from benchmarks.peers.kills import MOMENTS
from benchmarks.peers.notes import Notes
from benchmarks.peers.workers import Worker, descendants
from tests.support.databases import ROOT
from tests.support.waiting import poll_until

RELEASES = (ROOT / "benchmarks" / "peers" / "requirements.txt").read_text("utf-8")


def found(key: str, **changes: object) -> results.Found:
    peer = next(peer for peer in PEERS if peer.key == key)
    return replace(results.start(peer), **changes)  # type: ignore[arg-type]


def a_run(*peers: results.Found) -> results.Run:
    machine = {"at": "2026-11-22T10:00:00+00:00", "cores": 2, "processor": "a processor", "memory": "8 GB", "postgresql": "18.4"}
    run = {"rounds": 2, "idle_messages": 3, "kills": 10, "minutes": 1.5, "remark": "other work ran beside it"}
    return results.Run(machine, run, list(peers))


def ours() -> results.Found:
    killed = {"kills": 2, "messages": 9, "lost": 0, "twice": 0, "again": [0.02, 0.03], "never": 0, "waited": 5.0}
    rest = {"milliseconds": [1.0, 2.0, 9.0], "transactions": 1.0, "megabytes": 70.0, "processes": 2}
    rates = {
        "sqlqueue": {"one": [10.0, 20.0], "eight": [5000.0, 6000.0], "batch": [9000.0, 9000.0]},
        "sqlqueue, otherwise": {"eight": [500.0, 600.0], "batch": [9000.0, 12000.0]},
    }
    return found(OURS, rates=rates, sending={"one": [100.0], "bulk": [9.0]}, rest=rest, killed=killed)


def others() -> list[results.Found]:
    lost = {"kills": 2, "messages": 9, "lost": 1, "twice": 0, "again": [], "never": 2, "waited": 150.0}
    return [
        found("django-tasks-db", rates={"django-tasks-db": {"eight": [1000.0, 1100.0]}}, killed=lost),
        found("django-q2", rates={"django-q2": {"eight": [100.0, 9000.0]}}),
        found("pgqueuer", rates={"pgqueuer": {"batch": [10000.0, 8000.0]}}),
        found("oban", missing="oban is not installed"),
    ]


def test_every_peer_can_be_found_and_installed() -> None:
    assert len({peer.key for peer in PEERS}) == len(PEERS)
    for peer in PEERS:
        assert (ROOT / "benchmarks" / "peers" / "adapters" / f"{peer.adapter}.py").is_file()
        assert peer.key == OURS or f"\n{peer.packages[0]}" in f"\n{RELEASES}", f"{peer.packages[0]} is not in requirements.txt"
        assert {variant.column for variant in peer.variants} <= set(results.COLUMNS)
        assert all(variant.pace > 0 and variant.commands for variant in peer.variants)


def test_the_project_is_free_of_the_peers() -> None:
    own = (ROOT / "requirements.txt").read_text("utf-8") + (ROOT / "pyproject.toml").read_text("utf-8").partition("[tool")[0]

    assert [peer.packages[0] for peer in PEERS if peer.key != OURS and f'"{peer.packages[0]}' in own] == []


def test_quick_run_is_short_and_writes_no_file() -> None:
    quick, usual = parse(["--quick"]), parse([])

    assert (quick.rounds, quick.kills, quick.results) == (1, 2, None)
    assert quick.seconds < usual.seconds
    assert (usual.rounds, usual.kills, usual.results) == (3, 10, ROOT / "benchmarks" / "results")
    assert parse(["--quick", "--kills", "1"]).kills == 1


@pytest.mark.parametrize("arguments", [["--rounds", "0"], ["--seconds", "0"], ["--peer", "nobody"], ["--kills", "many"]])
def test_wrong_option_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(arguments)

    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_missing_environment_has_no_releases(tmp_path: Path) -> None:
    assert versions(tmp_path / "bin" / "python", ["celery"]) == {}
    assert versions(Path(sys.executable), ["psycopg", "no-such-package"]).keys() == {"python", "psycopg"}


def test_goals_compare_measurements_of_the_same_round() -> None:
    five, celery, batch, again, whole = results.goals([ours(), *others()])

    # the best Django peer is the one with the higher median: 5000 / 100 and 6000 / 9000
    assert (five.measured, five.met) == ("25.33 × django-q2 (0.67–50.00); sqlqueue, otherwise: 2.53; 5.23 × django-tasks-db", True)
    assert celery.met is None
    assert batch.measured == "1.01 × pgqueuer (0.90–1.12); sqlqueue, otherwise: 1.20"
    assert (again.measured, again.met) == ("0.03 s at most of 2", True)
    assert whole.met is True


def test_message_that_is_not_redelivered_misses_the_goal() -> None:
    late, never = ours(), ours()
    late.killed["again"] = [0.1, 1.0]
    never.killed["never"] = 1

    assert [results.goals([each])[3].met for each in (late, never, found(OURS))] == [False, False, None]


def test_run_is_written_as_json_and_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = a_run(ours(), *others())
    write(run, tmp_path)

    kept, content = page.newest(tmp_path), next(tmp_path.glob("*.md")).read_text("utf-8")
    assert results.run_of(json.loads(kept.read_text("utf-8"))) == run
    assert "| sqlqueue | 15 (10–20) | 5,500 (5,000–6,000) | 9,000 (9,000–9,000) | 100 | 9 |" in content
    assert "| django-tasks-db | 2 | 9 | 1 | 0 | – | 2 in 150 s |" in content
    assert "| sqlqueue | 2.0 | 9.0 | 1.0 | 70 | 2 |" in content
    assert "## What could not be measured\n\n- oban: oban is not installed" in content
    assert str(kept.with_suffix("")) in capsys.readouterr().err


def test_page_describes_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(a_run(ours(), *others()), tmp_path)
    capsys.readouterr()

    content = page.text(page.newest(tmp_path))

    assert "2 rounds in 2 minutes. Other work ran beside it." in content
    assert all(line in content for line in report.killed(a_run(ours(), *others())))


def test_missing_run_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="contains no results of make bench-peers"):
        page.newest(tmp_path)


def test_documented_page_matches_the_newest_run() -> None:
    assert page.PAGE.read_text("utf-8") == page.text(page.newest()), "run python -m benchmarks.peers.page"


class Kept(serving.Sender):
    """A sender that records its calls."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def send(self, body: serving.Body) -> None:
        self.calls.append(1)

    def send_many(self, bodies: Sequence[serving.Body]) -> None:
        self.calls.append(len(bodies))

    def clear(self) -> None:
        self.calls.clear()


def test_orders_are_sent_one_by_one_or_in_chunks() -> None:
    sender = Kept()

    one = serving.carry_out(sender, body(), {"first": 1, "count": 3})
    many = serving.carry_out(sender, body(), {"first": 4, "count": serving.CHUNK + 1, "many": True})
    late = serving.carry_out(sender, body(), {"first": 9, "count": 3, "seconds": 0.0})

    assert sender.calls == [1, 1, 1, serving.CHUNK, 1]
    assert [each["sent"] for each in (one, many, late)] == [3, serving.CHUNK + 1, 0]


def test_marked_message_kills_its_worker_once(tmp_path: Path) -> None:
    """A real process acts as the worker; after the kill, another one handles the message."""
    notes = Notes(tmp_path / "notes")
    code = "import sys, json; from benchmarks.peers.adapters.handling import handle; handle(json.loads(sys.argv[1]), print)"
    environment = {**os.environ, handling.NOTES: str(notes.path), handling.WORKER: "w"}

    def stands(number: int) -> bool:
        return any(note.what == "k" and note.number == number for note in notes.all())

    for number, moment in enumerate(MOMENTS):
        message = json.dumps({**body(number), "moment": moment})
        killed = Worker(Path(sys.executable), [("-c", code, message)], environment, tmp_path / moment)
        poll_until(functools.partial(stands, number))
        killed.kill()
        again = subprocess.run([sys.executable, "-c", code, message], env=environment, cwd=ROOT, check=True, capture_output=True)

        assert not killed.is_alive()
        assert again.stdout.split() == [str(number).encode()]
    assert [(note.what, note.number) for note in notes.all()] == [(what, at) for at in range(len(MOMENTS)) for what in "hkh"]
    assert notes.count() == 3 * len(MOMENTS)


def test_exited_worker_ends_the_wait(tmp_path: Path) -> None:
    worker = Worker(Path(sys.executable), [("-c", "raise SystemExit('no such thing')")], dict(os.environ), tmp_path / "log")

    with pytest.raises(RuntimeError, match="0 of 5 messages were handled: no such thing"):
        Notes(tmp_path / "notes").wait_for(5, worker)


def test_process_is_among_its_own_descendants() -> None:
    assert os.getpid() in descendants([os.getppid()])


def test_every_goal_of_the_newest_run_is_met() -> None:
    goals = json.loads(page.newest().read_text("utf-8"))["goals"]
    assert [goal["goal"] for goal in goals if not goal["met"]] == []


def test_every_peer_of_the_newest_run_was_killed_equally_often() -> None:
    run = json.loads(page.newest().read_text("utf-8"))
    killed = {peer["key"]: peer["killed"]["kills"] for peer in run["peers"] if peer["killed"]}
    assert killed == dict.fromkeys(killed, run["run"]["kills"])
