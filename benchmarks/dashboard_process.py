"""The measured site: `python -m benchmarks.dashboard_process TABLES MESSAGES FAILURES GROUPS ROUNDS`."""

from __future__ import annotations

import importlib
import sys

import django

if __name__ == "__main__":
    django.setup()
    # Models can be imported only now.
    importlib.import_module("benchmarks.dashboard_pages").main(*map(int, sys.argv[1:]))
