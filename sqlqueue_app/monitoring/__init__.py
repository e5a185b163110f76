"""Whether all is well: checks, health, metrics, and the notifications that rules ask for."""

from __future__ import annotations
