"""What the tests of checks have: a registry that they leave as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sqlqueue_app import health_check
from sqlqueue_app.health_checks import registry


@pytest.fixture
def registered() -> Iterator[Callable[..., Callable[[], None]]]:
    """Registers checks that pass, until the test ends."""
    names = []

    def register(name: str, **options: Any) -> Callable[[], None]:
        def well() -> None:
            return None

        names.append(name)
        return health_check(name, **options)(well)

    yield register
    for name in names:
        registry.remove(name)
