"""From a message to a row: routing, serializing, sending."""

from __future__ import annotations
