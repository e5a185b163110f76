"""Commands of the shop."""

from __future__ import annotations
