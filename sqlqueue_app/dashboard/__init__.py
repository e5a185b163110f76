"""The pages of the admin."""

from __future__ import annotations
