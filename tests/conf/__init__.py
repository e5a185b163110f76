"""Tests of the settings and their checks."""

from __future__ import annotations
