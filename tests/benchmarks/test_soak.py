"""A soak of a few seconds finds nothing wrong and says what it did; a report of one that finds something names it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.soak import markdown
from tests.support.databases import ROOT
from tests.support.postgresql import URL_VARIABLE


def test_a_short_one(tmp_path: Path) -> None:
    # One that is given is not ours to kill.
    server_kills = 0 if URL_VARIABLE in os.environ else 1
    arguments = ["--minutes", "0.05", "--kills", "2", "--server-kills", str(server_kills), "--messages", "100"]
    arguments += ["--database", "sqlite", "--results", str(tmp_path)]
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.soak", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )
    assert ended.returncode == 0, ended.stderr
    (file,) = tmp_path.glob("*-soak-sqlite.json")
    told = json.loads(file.read_text())
    assert told["faults"] == {}
    assert told["messages sent"] >= 100
    assert 0 < told["effects in both databases"] < told["effects"]
    assert sum(told["kills"].values()) == 2 + server_kills
    assert file.with_suffix(".md").read_text() in ended.stdout


def test_a_report_names_what_is_wrong() -> None:
    told = {
        "machine": {"cores": 2},
        "asked for": {"minutes": 1},
        "messages sent": 3,
        "in the error queue": {"never, LookupError": 1},
        "kills": {"supervisor": 2},
        "faults": {"lost": ["first", "second"], "undecided": ["prepared third"]},
    }
    text = markdown(told)
    assert "| **lost**                               | 2        |" in text
    assert "| **twice**                              | 0        |" in text
    assert "| **undecided**                          | 1        |" in text
    assert "- lost: first, second" in text
