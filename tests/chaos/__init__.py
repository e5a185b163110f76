"""Faults under load, followed by a comparison of ids; README.md lists which test covers which fault."""

from __future__ import annotations
