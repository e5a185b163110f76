"""Shared helpers of the tests: databases, waiting, leak checks."""

from __future__ import annotations
