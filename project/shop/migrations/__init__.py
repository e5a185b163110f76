"""The tables of the shop and its queues."""

from __future__ import annotations
