"""A soak of a few seconds finds no faults; a report names the faults that a soak finds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.soak import markdown
from tests.support.databases import ROOT
from tests.support.postgresql import URL_VARIABLE


def test_short_soak_finds_no_faults(tmp_path: Path) -> None:
    # A server from the environment must not be killed.
    server_kills = 0 if URL_VARIABLE in os.environ else 1
    arguments = ["--minutes", "0.05", "--kills", "2", "--server-kills", str(server_kills), "--messages", "100"]
    arguments += ["--database", "sqlite", "--results", str(tmp_path)]
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.soak", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )
    assert ended.returncode == 0, ended.stderr
    (file,) = tmp_path.glob("*-soak-sqlite.json")
    result = json.loads(file.read_text())
    assert result["faults"] == {}
    assert result["messages sent"] >= 100
    assert 0 < result["effects in both databases"] < result["effects"]
    assert sum(result["kills"].values()) == 2 + server_kills
    assert file.with_suffix(".md").read_text() in ended.stdout


def test_report_names_the_faults() -> None:
    result = {
        "machine": {"cores": 2},
        "options": {"minutes": 1},
        "messages sent": 3,
        "in the error queue": {"never, LookupError": 1},
        "kills": {"supervisor": 2},
        "faults": {"lost": ["first", "second"], "undecided": ["prepared third"]},
    }
    text = markdown(result)
    assert "| **lost**                               | 2        |" in text
    assert "| **twice**                              | 0        |" in text
    assert "| **undecided**                          | 1        |" in text
    assert "- lost: first, second" in text
