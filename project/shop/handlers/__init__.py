"""The message handlers, one module per endpoint."""

from __future__ import annotations
