"""Database dialects: statements, names, error codes and layouts of each database. No Django."""

from __future__ import annotations
