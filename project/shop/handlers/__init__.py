"""What the endpoints do with their messages: one module for each."""

from __future__ import annotations
