"""Sagas: long-running processes whose state is a row of a Django model."""

from __future__ import annotations
