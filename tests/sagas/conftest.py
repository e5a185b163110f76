"""Sagas of a test are forgotten after it; `orders` is the saga of `tests.support.saga_app` with its table."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sqlqueue_app.sagas import model as saga_model
from tests.support import saga_app
from tests.support.bench import Bench

saga_app.take_out()


@pytest.fixture(autouse=True)
def forget_sagas() -> Iterator[None]:
    known = dict(saga_model._classes)
    yield
    saga_model._classes.clear()
    saga_model._classes.update(known)
    saga_app.REGISTRY.all_models.clear()
    saga_app.REGISTRY.clear_cache()


@pytest.fixture
def orders(bench: Bench) -> saga_app.OrderSagas:
    """The bench is configured; the queue `out` receives the messages of the saga."""
    saga_app.put_in()
    saga_app.create_table(bench.database.alias)
    bench.install_queues("out")
    return saga_app.OrderSagas(bench)
