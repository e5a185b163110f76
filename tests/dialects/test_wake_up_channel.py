"""The channel of a table: the same on both sides, whatever the name."""

from __future__ import annotations

import itertools
import re

import pytest

from sqlqueue_app.dialects.dialect import dialect
from sqlqueue_app.dialects.schema import announcing, channel_literal, create_wake_up_trigger, wake_up_channel
from sqlqueue_app.messages.addresses import QueueAddress

POSTGRESQL = dialect("postgresql")
NAMES = ["Sales", "sales", 'a"b', "a.b", "Ünïcode ✓", "x" * 63, "it's", "back\\slash", "%s", "{table}", "$sqlqueue$", "new\nline"]


def qualified(table: str, schema: str = "public") -> str:
    return POSTGRESQL.qualified(QueueAddress(table, schema, form="postgresql"))


@pytest.mark.parametrize("name", NAMES)
def test_it_fits_and_needs_no_quotes(name: str) -> None:
    channel = wake_up_channel(qualified(name))
    assert re.fullmatch(r"[a-z0-9_]+", channel)
    assert len(channel.encode()) <= 63
    assert channel_literal(qualified(name)) == f"'{channel}'"


def test_it_never_changes() -> None:
    """Workers of different versions and triggers of earlier ones share it."""
    assert wake_up_channel('"public"."Sales"') == "sqlqueue_541dc94ed59d6a61686e9fc83352a9fe"


def test_different_tables_have_different_channels() -> None:
    tables = [qualified(name, schema) for name, schema in itertools.product([*NAMES, "b.c", 'b"."c'], [*NAMES, "a", 'a"."b'])]
    assert len({wake_up_channel(table) for table in tables}) == len(set(tables)) == len(tables)


@pytest.mark.parametrize("name", NAMES)
def test_the_statements_quote_the_table_and_name_its_channel(name: str) -> None:
    address = QueueAddress(name, "ops", form="postgresql")
    trigger = create_wake_up_trigger(POSTGRESQL, address)
    assert POSTGRESQL.qualified(address) in trigger
    assert f'"ops"."sqlqueue_wake_up"({channel_literal(POSTGRESQL.qualified(address))})' in trigger


def test_a_send_keeps_its_values_when_it_is_announced() -> None:
    table = qualified("100% {rows}")
    send = POSTGRESQL.statement("send", table=table, columns="id", rows="(1)")
    made = announcing(POSTGRESQL, send, table)
    assert made.names == send.names
    assert send.sql in made.sql
    assert channel_literal(table) in made.sql
