"""Tests of the commands, as a user runs them."""

from __future__ import annotations
