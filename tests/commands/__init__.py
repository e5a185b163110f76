"""Tests of the management commands, run as a user runs them."""

from __future__ import annotations
