"""What the tests stand on: databases, waiting, leak checks."""

from __future__ import annotations
