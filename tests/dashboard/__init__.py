"""Tests of the admin pages, without and with a database."""

from __future__ import annotations
