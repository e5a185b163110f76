"""Search for old messages in a lake: DuckDB, which the app uses, compared with pyarrow, and the effect of the writer options.

    python benchmarks/lake_search.py --rows 10000000 --days 30 --folder /tmp/lakes

Each set of options has one lake, which is created once and kept (2.9 GB for 10,000,000 messages). A cell is the median of the
rounds; within a round the variants take turns. The file cache is warm, as in the second search of a user.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pyarrow.compute as pc
import pyarrow.dataset as ds

from benchmarks.lake_making import END, RARE_TEXT, make_lake
from sqlqueue_app.lake.data_files import glob_files
from sqlqueue_app.lake.search import SearchQuery, search

LISTED: Final = ["counted_at", "row_version", "message_id", "conversation_id", "message_type", "endpoint", "sent_at", "body_bytes"]
SIX_HOURS: Final = END - timedelta(hours=6)


@dataclass(frozen=True, slots=True)
class Options:
    """How a lake is written."""

    name: str
    blooms: bool = True
    row_group: int = 20_000
    is_sorted: bool = True


def main() -> None:
    """Make the lakes, measure, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000, help="messages in the lake (default %(default)s)")
    parser.add_argument(
        "--option-rows",
        type=int,
        default=2_000_000,
        help="messages in each lake that compares writer options; 0: skip (default %(default)s)",
    )
    parser.add_argument("--days", type=int, default=30, help="days that the messages span (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="repetitions of each search (default %(default)s)")
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()) / "sqlqueue-lakes", help="directory of the lakes, which are kept"
    )
    options = parser.parse_args()
    lake = _lake(options.folder, Options("as-written"), options.rows, options.days)
    print(f"\n{options.rows:,} messages, {_size(lake):,.0f} MB; seconds, found within the time limit\n")
    _table({**_duckdb(lake), **_pyarrow(lake)}, options.rounds)
    if not options.option_rows:
        return
    for layout in (
        Options("as-written"),
        Options("no-bloom-filters", blooms=False),
        Options("groups-of-5000", row_group=5_000),
        Options("groups-of-100000", row_group=100_000),
        Options("not-sorted", is_sorted=False),
    ):
        lake = _lake(options.folder, layout, options.option_rows, options.days)
        print(f"\n{layout.name}: {options.option_rows:,} messages, {_size(lake):,.0f} MB\n")
        _table(_duckdb(lake), options.rounds)


def _lake(folder: Path, options: Options, rows: int, days: int) -> Path:
    lake: Path = folder / f"{options.name}-{rows}-{days}"
    if not lake.exists():
        begun = time.monotonic()
        made = lake.with_suffix(".making")
        make_lake(made, rows, days=days, blooms=options.blooms, row_group=options.row_group, is_sorted=options.is_sorted)
        made.rename(lake)
        print(f"{lake.name}: made in {time.monotonic() - begun:.0f} s", file=sys.stderr)
    return lake


def _size(lake: Path) -> float:
    return sum(each.stat().st_size for each in lake.rglob("*.parquet")) / 1e6


def _table(ways: dict[str, Callable[[], str]], rounds: int) -> None:
    taken: dict[str, list[float]] = {name: [] for name in ways}
    results = {}
    for _round in range(rounds):
        for name, way in ways.items():
            begun = time.monotonic()
            results[name] = way()
            taken[name].append(time.monotonic() - begun)
    print("| search | median | range | found |\n|---|---|---|---|")
    for name, seconds in taken.items():
        print(f"| {name} | {median(seconds):.2f} | {min(seconds):.2f}–{max(seconds):.2f} | {results[name]} |", flush=True)


def _known(lake: Path) -> tuple[str, str]:
    """The ids of a message in the middle of the time."""
    files = list(glob_files(str(lake)))
    middle = END - timedelta(days=len({each.day for each in files}) / 2)
    found = search(str(lake), files, SearchQuery(until=middle, size=1), seconds=60).messages[0]
    return found.conversation_id, found.message_id


def _duckdb(lake: Path) -> dict[str, Callable[[], str]]:
    conversation, message = _known(lake)

    def way(seconds: float = 2.0, **query: Any) -> Callable[[], str]:
        def run() -> str:
            found = search(str(lake), list(glob_files(str(lake))), SearchQuery(**query, bodies=True), seconds=seconds)
            back = f", searched back to {found.searched_from}" if found.is_partial else ""
            return f"{len(found.messages)}{'' if found.count is None else f' of {found.count:,}'}{back}"

        return run

    return {
        "DuckDB: the newest 50": way(),
        "DuckDB: conversation": way(conversation=conversation),
        "DuckDB: message id": way(message_id=message),
        "DuckDB: an id that there is not": way(message_id="none"),
        "DuckDB: type": way(message_type="Shop.Messages.Type03"),
        "DuckDB: type with *": way(message_type="*Type03"),
        "DuckDB: endpoint, no such type": way(endpoint="Endpoint07", message_type="None"),
        "DuckDB: endpoint of six hours": way(endpoint="Endpoint07", since=SIX_HOURS),
        "DuckDB: one day, long ago": way(since=END - timedelta(days=20), until=END - timedelta(days=19)),
        "DuckDB: a text that many hold": way(text="SADIPSCING"),
        "DuckDB: a rare text of six hours": way(text=RARE_TEXT, since=SIX_HOURS),
        "DuckDB: a rare text, 2 s": way(text=RARE_TEXT),
        "DuckDB: a rare text, to the end": way(text=RARE_TEXT, seconds=600),
    }


def _pyarrow(lake: Path) -> dict[str, Callable[[], str]]:
    conversation, message = _known(lake)

    def way(condition: Any) -> Callable[[], str]:
        def run() -> str:
            files = [str(lake / each.path) for each in glob_files(str(lake)) if each.table == "messages"]
            found = ds.dataset(files).to_table(columns=LISTED, filter=condition)
            newest = pc.select_k_unstable(found, k=50, sort_keys=[("counted_at", "descending")])
            return f"{len(found.take(newest))} of {found.num_rows:,}"

        return run

    text = pc.match_substring_regex(pc.field("headers"), RARE_TEXT, ignore_case=True) | pc.match_substring_regex(
        pc.field("body"), RARE_TEXT, ignore_case=True
    )
    return {
        "pyarrow: conversation": way(pc.field("conversation_id") == conversation),
        "pyarrow: message id": way(pc.field("message_id") == message),
        "pyarrow: an id that there is not": way(pc.field("message_id") == "none"),
        "pyarrow: type": way(pc.field("message_type") == "Shop.Messages.Type03"),
        "pyarrow: endpoint of six hours": way((pc.field("endpoint") == "Endpoint07") & (pc.field("counted_at") >= SIX_HOURS)),
        "pyarrow: a rare text of six hours": way(text & (pc.field("counted_at") >= SIX_HOURS)),
        "pyarrow: a rare text, to the end": way(text),
    }


if __name__ == "__main__":
    main()
