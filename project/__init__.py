"""The demo site: a small shop whose parts talk through queue tables. An example to copy from."""

from __future__ import annotations
