"""Fixtures of the monitoring tests: a registry of checks that is restored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sqlqueue_app import health_check
from sqlqueue_app.health_checks import registry


@pytest.fixture
def registered() -> Iterator[Callable[..., Callable[[], None]]]:
    """Register passing checks until the end of the test."""
    names = []

    def register(name: str, **options: Any) -> Callable[[], None]:
        def well() -> None:
            return None

        names.append(name)
        return health_check(name, **options)(well)

    yield register
    for name in names:
        registry.remove(name)
