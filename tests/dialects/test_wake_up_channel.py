"""The channel of a table and its locks: the same on both sides, for any name."""

from __future__ import annotations

import itertools
import re

import pytest

from sqlqueue_app.dialects.dialect import dialect
from sqlqueue_app.dialects.schema import WakeUpLocks, create_wake_up_trigger, wake_up_channel, wake_up_locks
from sqlqueue_app.messages.addresses import QueueAddress

POSTGRESQL = dialect("postgresql")
NAMES = ["Sales", "sales", 'a"b', "a.b", "Ünïcode ✓", "x" * 63, "it's", "back\\slash", "%s", "{table}", "$sqlqueue$", "new\nline"]


def qualified(table: str, schema: str = "public") -> str:
    return POSTGRESQL.qualified(QueueAddress(table, schema, form="postgresql"))


@pytest.mark.parametrize("name", NAMES)
def test_channel_fits_and_needs_no_quotes(name: str) -> None:
    channel = wake_up_channel(qualified(name))
    assert re.fullmatch(r"[a-z0-9_]+", channel)
    assert len(channel.encode()) <= 63


def test_channel_never_changes() -> None:
    """Workers of different versions and triggers of earlier ones share it."""
    channel = wake_up_channel('"public"."Sales"')
    assert channel == "sqlqueue_541dc94ed59d6a61686e9fc83352a9fe"
    assert wake_up_locks(channel) == WakeUpLocks(requested=6061222013939051105, sending=7525127709586008574)


def test_different_tables_have_different_channels() -> None:
    tables = [qualified(name, schema) for name, schema in itertools.product([*NAMES, "b.c", 'b"."c'], [*NAMES, "a", 'a"."b'])]
    assert len({wake_up_channel(table) for table in tables}) == len(set(tables)) == len(tables)


@pytest.mark.parametrize("name", NAMES)
def test_locks_are_two_keys_that_postgresql_accepts(name: str) -> None:
    locks = wake_up_locks(wake_up_channel(qualified(name)))
    assert locks.requested != locks.sending
    assert all(-(2**63) <= key < 2**63 for key in (locks.requested, locks.sending))


@pytest.mark.parametrize("name", NAMES)
def test_statements_quote_the_table_and_name_its_channel(name: str) -> None:
    address = QueueAddress(name, "ops", form="postgresql")
    function, trigger = create_wake_up_trigger(POSTGRESQL, address)
    channel = wake_up_channel(POSTGRESQL.qualified(address))
    assert 'CREATE FUNCTION "ops"."sqlqueue_wake_up"()' in function
    assert POSTGRESQL.qualified(address) in trigger
    assert f"""EXECUTE FUNCTION "ops"."sqlqueue_wake_up"('{channel}')""" in trigger
    assert trigger.count(f"({wake_up_locks(channel).requested})") == 2
    assert trigger.count(f"({wake_up_locks(channel).sending})") == 1
