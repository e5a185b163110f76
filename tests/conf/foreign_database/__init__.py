"""A database engine that sqlqueue does not support."""

from __future__ import annotations
