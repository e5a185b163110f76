"""Statements, layouts and error codes, without a database."""

from __future__ import annotations
