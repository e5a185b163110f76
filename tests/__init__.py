"""The tests of sqlqueue."""

from __future__ import annotations
