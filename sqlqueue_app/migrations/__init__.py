"""Migrations of the managed tables."""

from __future__ import annotations
