"""How a table's receivers are woken on PostgreSQL: the channel of a table, and the trigger that announces new rows on it."""

from __future__ import annotations

import hashlib

from sqlqueue_app.databases.dialect import Dialect
from sqlqueue_app.databases.statements import Rendered
from sqlqueue_app.messages.addresses import QueueAddress

# Trigger and function are looked for by these names; there is one function in each schema.
TRIGGER = "sqlqueue_wake_up"
FUNCTION = "sqlqueue_wake_up"
_CHANNEL_PREFIX = "sqlqueue_"
_HASH_CHARACTERS = 32
_SEND_MARK = "{send}"


def wake_up_channel(qualified: str) -> str:
    """The channel of a table by its quoted `"schema"."table"`: 41 characters of `[a-z0-9_]`, of the 63 bytes that PostgreSQL takes.

    A hash, because names may be as long as a channel, and hold what would have to be quoted. The database is no part of it:
    notifications stay in theirs.
    """
    return _CHANNEL_PREFIX + hashlib.sha256(qualified.encode()).hexdigest()[:_HASH_CHARACTERS]


def channel_literal(qualified: str) -> str:
    """The channel as an SQL literal; there is nothing in it to escape."""
    return f"'{wake_up_channel(qualified)}'"


def announcing(dialect: Dialect, send: Rendered, qualified: str) -> Rendered:
    """The INSERT `send` into the table, announced by the same statement; it returns one row without meaning."""
    around = dialect.statement("send_and_notify", send=_SEND_MARK, channel=channel_literal(qualified))
    return Rendered(around.sql.replace(_SEND_MARK, send.sql), send.names)


def wake_up_function(dialect: Dialect, address: QueueAddress) -> str:
    """The quoted name of the function that the trigger of the table calls: in the table's own schema."""
    return f"{dialect.quote(address.schema or dialect.default_schema or '')}.{dialect.quote(FUNCTION)}"


def wake_up_lock(dialect: Dialect, address: QueueAddress) -> str:
    """The name of the lock that installers of the function wait for."""
    return f"{wake_up_function(dialect, address)}_lock"


def create_wake_up_function(dialect: Dialect, address: QueueAddress) -> str:
    """The statement that makes the function; it fails if the schema has it."""
    return dialect.script("create_wake_up_function", function=wake_up_function(dialect, address))


def create_wake_up_trigger(dialect: Dialect, address: QueueAddress) -> str:
    """The statement that makes the trigger, or makes it anew; it needs the function."""
    table = dialect.qualified(address)
    return dialect.script(
        "create_wake_up_trigger",
        trigger=dialect.quote(TRIGGER),
        table=table,
        function=wake_up_function(dialect, address),
        channel=channel_literal(table),
    )


def drop_wake_up_trigger(dialect: Dialect, address: QueueAddress) -> str:
    """The statement that takes the trigger away; harmless where there is none."""
    return dialect.script("drop_wake_up_trigger", trigger=dialect.quote(TRIGGER), table=dialect.qualified(address))
