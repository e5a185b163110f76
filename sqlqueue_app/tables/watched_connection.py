"""Django's connection, watched: somebody is told before it is first used, so that a savepoint need not be taken for nothing.

Whatever asks the database something asks the attribute `connection` of Django's connection for the driver's one: every cursor,
`copy()` and `callproc()` included, every `atomic()`, and code that goes below Django. That one attribute is watched.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, cast

from django.db.backends.base.base import BaseDatabaseWrapper

SAVEPOINT: Final = "sqlqueue"
"""The name of the savepoint before the work of a message."""

Hooks = list[Callable[[], Any]]
"""What waits for a commit, in its order."""


class Watched:
    """Mixed into the class of one Django connection. Like the connection, of one thread."""

    on_first_use: Callable[[], None] | None = None
    """Called once, before the driver's connection is handed out next; None is set before the call."""

    @property
    def connection(self) -> Any:
        """The driver's connection, as in every Django connection."""
        on_first_use = self.on_first_use
        if on_first_use is not None:
            self.on_first_use = None
            on_first_use()
        return self.__dict__.get("connection")

    @connection.setter
    def connection(self, raw: Any) -> None:
        self.__dict__["connection"] = raw

    @property
    def unwatched(self) -> Any:
        """The driver's connection, without telling anybody; None where there is none."""
        return self.__dict__.get("connection")


class WatchedConnection(Watched, BaseDatabaseWrapper):
    """For annotations: what `watch` makes of a connection."""


def watch(connection: BaseDatabaseWrapper) -> WatchedConnection:
    """Have the connection watched from now on; it stays the same object. Costs nothing while nobody wants to be told."""
    if not isinstance(connection, Watched):
        connection.__class__ = _watched(type(connection))  # type: ignore[arg-type]  # the stubs give metaclasses no hash
    return cast(WatchedConnection, connection)


@functools.cache
def _watched(kind: type[BaseDatabaseWrapper]) -> type[BaseDatabaseWrapper]:
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind.__name__, (Watched, kind), names)
