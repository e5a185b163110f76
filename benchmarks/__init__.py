"""Measurements of speed and memory: `make bench`. See README.md for the method and what the numbers do not say."""

from __future__ import annotations
