"""A shop of three services. Each has its own handlers; here they share a database, and communicate only by messages."""

from __future__ import annotations
