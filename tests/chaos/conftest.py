"""What these tests have: a bench on each database, with no handlers of other tests."""

from __future__ import annotations

from tests.receiving.conftest import bench, calls, events, handler_registry, postgresql_bench, sqlite_bench

__all__ = ["bench", "calls", "events", "handler_registry", "postgresql_bench", "sqlite_bench"]
