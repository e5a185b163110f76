"""A connection that only listens for notifications, on libpq below psycopg's connections.

Every wait of it, for the connection, for an answer, for a notification, ends at once when it is interrupted; psycopg's own waits
cannot be, and a server that does not answer would hold up the stop of a worker. PostgreSQL only; it needs psycopg 3.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlqueue_app.databases.dialect import dialect
from sqlqueue_app.databases.wake_up import TRIGGER
from sqlqueue_app.messages.errors import ConnectionLost, DatabaseError
from sqlqueue_app.tables.connections import connection_of

# For a connection where the alias sets no connect_timeout, and for an answer.
CONNECT_SECONDS = 30.0
ANSWER_SECONDS = 10.0


class Interrupted(Exception):
    """`interrupt` was called: no wait works any more."""


class ListeningConnection:
    """One connection to the database of an alias, made from the alias's parameters, TCP keepalive among them.

    Used by one thread, which alone opens and closes it; `interrupt` may be called from any.
    """

    def __init__(self, alias: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._alias = alias
        self._clock = clock
        self._dialect = dialect("postgresql")
        self._raw: Any = None
        self._interrupt_end, self._wait_end = socket.socketpair()
        self._interrupt_end.setblocking(False)

    def interrupt(self) -> None:
        """End the wait that goes on, and every later one: they raise Interrupted."""
        # A full buffer or a closed socket: it was interrupted before.
        with contextlib.suppress(OSError):
            self._interrupt_end.send(b"x")

    def open(self, channels: Iterable[str]) -> None:
        """Connect and listen on the channels. ConnectionLost or DatabaseError if that cannot be."""
        # Here and not above: without PostgreSQL there may be no psycopg at all.
        from psycopg import pq  # noqa: PLC0415

        self.close()
        conninfo, seconds = _conninfo(self._alias)
        listen = "; ".join(self._dialect.script("listen", channel=self._dialect.quote(channel)) for channel in channels)
        with _errors():
            self._raw = pq.PGconn.connect_start(conninfo)
            self._connect(pq, self._clock() + seconds)
            self._raw.nonblocking = 1
            self._ask(listen.encode())

    def covered(self, tables: Mapping[str, str]) -> frozenset[str]:
        """Of the tables (channel by quoted name) the channels on which a trigger announces every new row.

        None of them where a pooler stands between us and the server: it may hand our session to others, and what is announced then
        reaches nobody.
        """
        statement = self._dialect.statement("wake_up_triggers", trigger=f"'{TRIGGER}'")
        wanted = json.dumps({channel: qualified for qualified, channel in tables.items()})
        with _errors():
            found = self._ask((statement.sql % "$1").encode(), [wanted.encode()])
        if any(int(session) != self._raw.backend_pid for _, _, session in found):
            return frozenset()
        return frozenset(channel.decode() for channel, has_trigger, _ in found if int(has_trigger))

    def wait(self, seconds: float) -> set[str]:
        """The channels on which something was announced; empty after so many seconds. ConnectionLost, Interrupted."""
        deadline = self._clock() + seconds
        with _errors():
            while not (channels := self._announced()):
                if not self._ready(selectors.EVENT_READ, deadline):
                    return set()
                self._raw.consume_input()
        return channels

    def close(self) -> None:
        """Close the connection; it may be opened again."""
        if self._raw is not None:
            self._raw.finish()
            self._raw = None

    def dispose(self) -> None:
        """Close everything, for good."""
        self.close()
        self._interrupt_end.close()
        self._wait_end.close()

    def _announced(self) -> set[str]:
        channels = set()
        while (notification := self._raw.notifies()) is not None:
            channels.add(notification.relname.decode())
        return channels

    def _connect(self, pq: Any, deadline: float) -> None:
        while (status := self._raw.connect_poll()) != pq.PollingStatus.OK:
            if status == pq.PollingStatus.FAILED:
                raise ConnectionLost(f"failed to connect for listening: {self._raw.get_error_message()}")
            events = selectors.EVENT_READ if status == pq.PollingStatus.READING else selectors.EVENT_WRITE
            if not self._ready(events, deadline):
                raise ConnectionLost("failed to connect for listening: the server does not answer")

    def _ask(self, statement: bytes, values: Sequence[bytes] | None = None) -> list[tuple[Any, ...]]:
        """Send a statement and read all of its answer; DatabaseError for what the server refused."""
        from psycopg import pq  # noqa: PLC0415 - as in `open`

        raw = self._raw
        deadline = self._clock() + ANSWER_SECONDS
        if values is None:
            raw.send_query(statement)
        else:
            raw.send_query_params(statement, values)
        while raw.flush():
            self._ready_in_time(selectors.EVENT_READ | selectors.EVENT_WRITE, deadline)
            raw.consume_input()
        rows: list[tuple[Any, ...]] = []
        refused: str | None = None
        while True:
            while raw.is_busy():
                self._ready_in_time(selectors.EVENT_READ, deadline)
                raw.consume_input()
            result = raw.get_result()
            if result is None:
                break
            if result.status not in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
                refused = result.get_error_message()
            rows += [tuple(result.get_value(row, column) for column in range(result.nfields)) for row in range(result.ntuples)]
        if refused is not None:
            raise DatabaseError(f"failed to listen: {refused}")
        return rows

    def _ready_in_time(self, events: int, deadline: float) -> None:
        if not self._ready(events, deadline):
            raise ConnectionLost(f"failed to listen: no answer from the server within {ANSWER_SECONDS:g} s")

    def _ready(self, events: int, deadline: float) -> bool:
        """Wait until the connection can be read or written, or for the deadline; Interrupted before everything else."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._wait_end, selectors.EVENT_READ)
            # The socket may be another one at each step of connecting, so it is registered anew for each wait.
            selector.register(self._raw.socket, events)
            ready = selector.select(max(0.0, deadline - self._clock()))
        if any(key.fileobj is self._wait_end for key, _ in ready):
            raise Interrupted
        return bool(ready)


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    import psycopg  # noqa: PLC0415 - as in `ListeningConnection.open`

    try:
        yield
    except psycopg.Error as error:
        raise ConnectionLost(f"failed to listen: {str(error).strip()}") from error


def _conninfo(alias: str) -> tuple[bytes, float]:
    """What libpq needs of the alias's parameters, and how long connecting may take. ConnectionLost if there are none to get."""
    from psycopg import pq  # noqa: PLC0415 - as in `ListeningConnection.open`
    from psycopg.conninfo import make_conninfo  # noqa: PLC0415

    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    try:
        # Asked anew for each connection: a backend may hand out passwords that expire.
        given: Mapping[str, Any] = connection_of(alias).get_connection_params()
        conninfo = make_conninfo(**{name: value for name, value in given.items() if name in known})
    except Exception as error:
        raise ConnectionLost(f"failed to find the parameters of database {alias!r} for listening: {error}") from error
    timeout = given.get("connect_timeout")
    return conninfo.encode(), float(timeout) if timeout else CONNECT_SECONDS
