"""The site whose search is measured: `python -m benchmarks.search_process ROUNDS`."""

from __future__ import annotations

import importlib
import sys

import django

if __name__ == "__main__":
    django.setup()
    # Models can be imported only now.
    importlib.import_module("benchmarks.search_pages").main(int(sys.argv[1]))
