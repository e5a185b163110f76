"""The number of random cases per test: few in the suite, more in `benchmarks/fuzz.py`, which runs the same tests longer."""

from __future__ import annotations

import os
from typing import Final

from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase

TIMES: Final = "SQLQUEUE_FUZZ_TIMES"
"""The variable with the factor for the number of cases."""
KEPT: Final = "SQLQUEUE_FUZZ_KEPT"
"""The variable that names the folder for failed cases, which are tried first the next time."""


def fuzzed(examples: int, *, always_the_same: bool = True) -> settings:
    """The settings of a test with this many cases; in the suite `always_the_same` ones by default."""
    times = int(os.environ.get(TIMES, "1"))
    kept = os.environ.get(KEPT)
    return settings(
        deadline=None,
        max_examples=examples * times,
        suppress_health_check=list(HealthCheck),
        derandomize=always_the_same and times == 1,
        database=DirectoryBasedExampleDatabase(kept) if kept else None,
        print_blob=True,
    )
