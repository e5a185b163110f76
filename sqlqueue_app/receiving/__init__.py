"""From a row to a handler: threads, processing, failures."""

from __future__ import annotations
