"""Tests of what operators do, without and with a database."""

from __future__ import annotations
