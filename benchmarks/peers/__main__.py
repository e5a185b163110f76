"""Compare sqlqueue with other queues: `make bench-peers`, or `python -m benchmarks.peers --help`."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.databases import ROOT, PostgreSQL
from benchmarks.peers import kills, rates, report, resting, results
from benchmarks.peers.brokers import Broker, BrokerMissing
from benchmarks.peers.catalogue import OURS, PEERS, Peer
from benchmarks.peers.plays import Play
from benchmarks.report import machine
from benchmarks.run import RESULTS, log_line

_QUICK: dict[str, object] = {"rounds": 1, "seconds": 0.2, "idle_messages": 3, "watched": 2.0, "kills": 2, "patience": 5.0}
_USUAL: dict[str, object] = {"results": RESULTS}
_VERSIONS = """
import json, sys
from importlib.metadata import PackageNotFoundError, version
found = {"python": sys.version.split()[0]}
for name in json.loads(sys.argv[1]):
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the options; a wrong one exits with code 2 and one line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description="Compare sqlqueue with other queues, which take turns on one temporary PostgreSQL server with durable commits.",
    )
    parser.add_argument("--quick", action="store_true", help="one short round with two kills, to check that everything runs")
    parser.add_argument(
        "--peer", action="append", choices=[peer.key for peer in PEERS], help="measure only this one; may be repeated"
    )
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each rate, in turns (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=1.5, help="approximate length of a turn (default %(default)s)")
    parser.add_argument(
        "--idle-messages", type=int, default=50, metavar="N", help="messages to each idle worker (default %(default)s)"
    )
    parser.add_argument(
        "--watched", type=float, default=30.0, metavar="S", help="seconds to count the transactions of an idle worker"
    )
    parser.add_argument("--kills", type=int, default=10, metavar="N", help="kills of workers per peer (default %(default)s)")
    parser.add_argument(
        "--patience",
        type=float,
        default=300.0,
        metavar="S",
        help="seconds to wait for the redelivery of messages of killed workers (default %(default)s)",
    )
    parser.add_argument(
        "--environment", type=Path, default=ROOT / ".venv-peers", metavar="DIR", help="virtual environment of the peers"
    )
    parser.add_argument("--remark", default="", help="a remark about this run, for the report")
    parser.add_argument(
        "--results", type=Path, metavar="DIR", help="directory of the results (default: benchmarks/results; none with --quick)"
    )
    options = parser.parse_args(arguments)
    # options given with --quick take precedence
    parser.set_defaults(**(_QUICK if options.quick else _USUAL))
    options = parser.parse_args(arguments)
    if (
        min(options.rounds, options.idle_messages, options.kills) < 1
        or min(options.seconds, options.watched, options.patience) <= 0
    ):
        parser.error("--rounds, --idle-messages and --kills must be 1 or more, --seconds, --watched and --patience above 0")
    return options


def versions(python: Path, packages: Sequence[str]) -> dict[str, str]:
    """The versions of the installed packages and of Python; empty without such an environment."""
    if not python.exists():
        return {}
    command = [str(python), "-c", _VERSIONS, json.dumps(list(packages))]
    found: dict[str, str] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


@contextmanager
def plays(options: argparse.Namespace, server: PostgreSQL, found: Mapping[str, results.Found]) -> Iterator[list[Play]]:
    """All available peers, installed; `found` records the missing ones."""
    python = options.environment / "bin" / "python"
    started: dict[str, Broker] = {}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sqlq-peers-")))
        directory.chmod(0o755)
        ready = []
        for peer in chosen(options):
            there = found[peer.key]
            try:
                _check_installed(peer, there, python)
                broker = _broker(peer, started, stack)
                there.broker = broker.version if broker else ""
                ready.append(stack.enter_context(closing(Play(peer, python, server, directory, broker.url if broker else ""))))
            except (BrokerMissing, RuntimeError) as problem:
                there.missing = str(problem)
                log_line(f"{peer.name} is not measured: {problem}")
        yield ready


def chosen(options: argparse.Namespace) -> list[Peer]:
    """The requested peers; ours is always included, because the others are compared with it."""
    return [peer for peer in PEERS if not options.peer or peer.key in (OURS, *options.peer)]


def _check_installed(peer: Peer, there: results.Found, python: Path) -> None:
    there.versions = versions(Path(sys.executable), ["Django", "psycopg"]) if peer.key == OURS else versions(python, peer.packages)
    if peer.key != OURS and peer.packages[0] not in there.versions:
        text = f"its Python is {there.versions['python']}" if there.versions else "there is none: run make bench-peers"
        raise RuntimeError(f"{peer.packages[0]} is not installed in {python.parent.parent.name} ({text})")


def _broker(peer: Peer, started: dict[str, Broker], stack: ExitStack) -> Broker | None:
    if peer.broker and peer.broker not in started:
        started[peer.broker] = stack.enter_context(closing(Broker(peer.broker)))
    return started.get(peer.broker)


def measure_rates(options: argparse.Namespace, ready: Sequence[Play], found: Mapping[str, results.Found]) -> None:
    """Measure round after round; peers that are compared follow each other."""
    for number in range(1, options.rounds + 1):
        for play in ready:
            for way, many in (("one", False), ("bulk", True)):
                rate = rates.sending(play, options.seconds / 4, many=many)
                found[play.peer.key].sending.setdefault(way, []).append(rate)
                log_line(f"{number}: {play.peer.name}: sends {rate:,.0f} messages/s ({way})")
        for column in results.COLUMNS:
            for play in ready:
                for variant in play.peer.variants:
                    if variant.column == column:
                        row = variant.row or play.peer.name
                        try:
                            rate = rates.receiving(play, variant, options.seconds)
                        except RuntimeError as problem:
                            # a failing peer is reported, and the others are still measured
                            found[play.peer.key].problems.append(str(problem))
                            log_line(str(problem))
                            continue
                        found[play.peer.key].rates.setdefault(row, {}).setdefault(column, []).append(rate)
                        log_line(f"{number}: {row}: {rate:,.0f} messages/s ({column})")


def measure(options: argparse.Namespace) -> results.Run:
    """Measure everything on one server."""
    facts, begin = machine(), time.monotonic()
    found = {peer.key: results.start(peer) for peer in chosen(options)}
    with closing(PostgreSQL(durable=True)) as server:
        facts["postgresql"] = server.version
        with plays(options, server, found) as ready:
            measure_rates(options, ready, found)
            resting_found = resting.measure(
                ready, server, messages=options.idle_messages, watched=options.watched, log_line=log_line
            )
            for key, rest in resting_found.items():
                found[key].rest = asdict(rest)
            for key, killed in kills.measure(ready, kills=options.kills, patience=options.patience, log_line=log_line).items():
                found[key].killed = asdict(killed)
    facts["load after"] = os.getloadavg()
    names = ("rounds", "seconds", "idle_messages", "watched", "kills", "patience", "remark")
    run = {name: getattr(options, name) for name in names} | {"minutes": round((time.monotonic() - begin) / 60, 1)}
    return results.Run(facts, run, list(found.values()))


def main(arguments: Sequence[str]) -> int:
    """Measure, print, write the files; returns 0 even if a goal is missed, because a benchmark is not a test."""
    options = parse(arguments)
    # a signal also ends brokers and workers; a shell that starts it in the background would make it ignore Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    run = measure(options)
    print(report.markdown(run))
    if options.results:
        write(run, options.results)
    return 0


def write(run: results.Run, directory: Path) -> None:
    """Write the two files of a run, named after its day."""
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / f"{datetime.now(UTC):%Y-%m-%d}-peers"
    text = json.dumps(run.as_json(), indent=1, ensure_ascii=False) + "\n"
    file.with_suffix(".json").write_text(text, encoding="utf-8")
    file.with_suffix(".md").write_text(report.markdown(run), encoding="utf-8")
    log_line(f"written to {file}.json and .md; the page is made from it by python -m benchmarks.peers.page")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
