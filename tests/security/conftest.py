"""The worker of the tests of receiving, for tests that attack it."""

from __future__ import annotations

from tests.receiving.conftest import calls, handler_registry, postgresql_bench, sqlite_bench

__all__ = ["calls", "handler_registry", "postgresql_bench", "sqlite_bench"]
