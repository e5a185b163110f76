"""Things break under load, and then ids are compared; README.md says which fault is tried where."""

from __future__ import annotations
