"""Tests of the distributed packages."""

from __future__ import annotations
