"""The documentation is true: what it shows is run, what it links to is there."""

from __future__ import annotations
