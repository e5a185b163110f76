"""The demo site: a small shop whose services communicate through queue tables. An example to copy from."""

from __future__ import annotations
