"""Read the recorded rows in ``tests/golden``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "golden"


def rows(name: str) -> list[dict[str, Any]]:
    """All rows of one ``.jsonl`` file, in order."""
    lines = (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines if line]
