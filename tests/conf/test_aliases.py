"""The dialect of an alias, determined without connecting."""

from __future__ import annotations

import pytest
from django.db import connections

from sqlqueue_app.conf import dialect_of
from sqlqueue_app.conf.settings import ConfiguredDialects
from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.tables.connections import aliases_beside

SUPPORTED = "expected one for SQL Server (mssql-django), PostgreSQL and SQLite"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Sets the engine of the alias "some" with `setitem`."""
    monkeypatch.setitem(connections.settings, "some", {**connections.settings["default"], "ENGINE": ""})
    return monkeypatch


@pytest.mark.parametrize(
    ("name", "dialect"),
    [
        ("mssql", "sqlserver"),
        ("django.db.backends.postgresql", "postgresql"),
        ("django.db.backends.sqlite3", "sqlite"),
        ("tests.conf.wrapped_sqlite", "sqlite"),
    ],
)
def test_supported_engines(engine: pytest.MonkeyPatch, name: str, dialect: str) -> None:
    engine.setitem(connections.settings["some"], "ENGINE", name)

    assert dialect_of("some") == dialect
    assert ConfiguredDialects()["some"] == dialect


def test_other_database_is_refused_with_the_supported_ones(engine: pytest.MonkeyPatch) -> None:
    engine.setitem(connections.settings["some"], "ENGINE", "tests.conf.foreign_database")

    with pytest.raises(ConfigurationError) as caught:
        dialect_of("some")
    assert str(caught.value) == (f"the engine 'tests.conf.foreign_database' of the database 'some' is not supported, {SUPPORTED}")


def test_engine_that_cannot_be_loaded_is_refused(engine: pytest.MonkeyPatch) -> None:
    engine.setitem(connections.settings["some"], "ENGINE", "no.such.engine")

    with pytest.raises(ConfigurationError, match=r"the engine 'no.such.engine' of the database 'some' cannot be loaded: "):
        dialect_of("some")


@pytest.mark.parametrize("name", ["no.such.engine", "django.db.backends.dummy"])
def test_alias_that_cannot_be_used_does_not_stop_a_worker_beside_it(engine: pytest.MonkeyPatch, name: str) -> None:
    engine.setitem(connections.settings["some"], "ENGINE", name)

    try:
        assert "some" not in aliases_beside("default")
    finally:
        if name == "django.db.backends.dummy":
            del connections["some"]


def test_unknown_alias_names_the_near_one() -> None:
    with pytest.raises(ConfigurationError) as caught:
        dialect_of("defualt")
    assert str(caught.value) == "the alias 'defualt' is not in DATABASES: did you mean 'default'?"


def test_dialects_list_the_aliases_without_loading_engines(engine: pytest.MonkeyPatch) -> None:
    engine.setitem(connections.settings["some"], "ENGINE", "no.such.engine")
    dialects = ConfiguredDialects()

    assert set(dialects) == set(connections.settings)
    assert len(dialects) == len(connections.settings)
    assert "some" in dialects
    assert "other" not in dialects
    with pytest.raises(KeyError):
        dialects["other"]
