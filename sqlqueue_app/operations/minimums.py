"""How many live instances an endpoint must have at least, as operators have said: rows of `EndpointExpectation`."""

from __future__ import annotations

from typing import Final

from django.db import transaction

from sqlqueue_app.instances import managed_alias
from sqlqueue_app.messages.errors import ConfigurationError, ConnectionLost, DatabaseError
from sqlqueue_app.models import EndpointExpectation
from sqlqueue_app.operations.actions import Actor
from sqlqueue_app.operations.looking import looking
from sqlqueue_app.tables.clock import database_now

MOST: Final = 1_000


def read_minimums() -> dict[str, int]:
    """The minimum of each endpoint that has one; none where the tables of `migrate` are missing. One statement. ConnectionLost."""
    alias = managed_alias()
    try:
        with looking(alias, "read the minimums of instances"):
            return dict(EndpointExpectation.objects.using(alias).values_list("endpoint", "minimum"))
    except ConnectionLost:
        raise
    except DatabaseError:
        return {}


def set_minimum(endpoint: str, minimum: int, *, actor: Actor) -> None:
    """Expect so many live instances of an endpoint; 0: expect nothing of it. ConfigurationError for a number that is none.

    Raises Django's errors of the database.
    """
    if isinstance(minimum, bool) or not 0 <= minimum <= MOST:
        raise ConfigurationError(
            f"the minimum of instances of {endpoint!r} cannot be {minimum!r}: expected an integer from 0 to {MOST}; "
            "0 expects nothing"
        )
    alias = managed_alias()
    rows = EndpointExpectation.objects.using(alias)
    if not minimum:
        rows.filter(endpoint=endpoint).delete()
        return
    told = {"minimum": minimum, "changed_by": actor.name[:255], "changed_at": database_now(alias)}
    with transaction.atomic(using=alias):
        rows.update_or_create(endpoint=endpoint, defaults=told)
