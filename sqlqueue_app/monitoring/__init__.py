"""Monitoring: checks, health, metrics, and notifications by rules."""

from __future__ import annotations
