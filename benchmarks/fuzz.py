"""Random rows, headers, bodies, addresses, settings and delayed messages: `python -m benchmarks.fuzz --minutes N --seed S`.

It repeats the randomized tests of the suite until the time is up, with many more cases and a new seed each round, on SQLite and
a real PostgreSQL. For each round it prints the number of cases of each test. A failing case is stored in --kept with its report
and is tried first the next time; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = {
    "rows of any shape, through workers": "tests/receiving/test_any_shape.py",
    "delayed rows of any shape and due time": "tests/receiving/test_any_delayed.py",
    "rows of any shape, for readers": "tests/browsing/test_any_shape.py",
    "settings": "tests/conf/test_any_settings.py",
    "addresses": "tests/messages/test_address_properties.py",
    "headers": "tests/messages/test_headers.py",
    "times": "tests/messages/test_times.py",
    "bodies": "tests/messages/test_deserialize.py",
}
# Cases that start workers take a tenth of a second, the others much less.
SLOW = 4
_TRIED = re.compile(r"(?P<passing>[0-9]+) passing, (?P<failing>[0-9]+) failing")


def round_of(module: str, seed: int, times: int, kept: Path) -> tuple[int, bool, str]:
    """Run one module; returns the number of cases, whether all passed, and its output."""
    environment: Mapping[str, str] = {
        **os.environ,
        "SQLQUEUE_FUZZ_TIMES": str(max(2, times // SLOW if "any_" in module and "conf" not in module else times)),
        "SQLQUEUE_FUZZ_KEPT": str(kept / "cases"),
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--show-capture=no",
        f"--hypothesis-seed={seed}",
        "--hypothesis-show-statistics",
        module,
    ]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    tried = sum(int(match["passing"]) + int(match["failing"]) for match in _TRIED.finditer(ended.stdout))
    return tried, ended.returncode == 0, ended.stdout + ended.stderr


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="start no new round after this time (default %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=1, help="seed of the first round; each further round adds 1 (default %(default)s)"
    )
    parser.add_argument(
        "--times", type=int, default=20, help="multiply the number of cases in the test suite by this (default %(default)s)"
    )
    parser.add_argument("--kept", type=Path, default=ROOT / ".fuzz", help="directory for failing cases (default: .fuzz)")
    given = parser.parse_args()
    given.kept.mkdir(parents=True, exist_ok=True)
    end, seed, failures, total = time.monotonic() + given.minutes * 60, given.seed, 0, 0
    while time.monotonic() < end:
        for what, module in TESTS.items():
            tried, is_well, output = round_of(module, seed, given.times, given.kept)
            total += tried
            print(f"seed {seed}: {what}: {tried:,} cases{'' if is_well else ', FAILED'}", flush=True)
            if not is_well:
                failures += 1
                report = given.kept / f"{Path(module).stem}-{seed}.txt"
                report.write_text(output, encoding="utf-8")
                print(f"  the report is in {report}", flush=True)
            if time.monotonic() >= end:
                break
        seed += 1
    print(f"{total:,} cases, {failures} failures")
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
