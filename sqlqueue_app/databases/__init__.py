"""One dialect a database: its statements, names, error numbers and layouts. No Django."""

from __future__ import annotations
