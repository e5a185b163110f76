"""What an operator asks of checks: not to count for a while, to count again, to be run now."""

from __future__ import annotations

from datetime import datetime

from sqlqueue_app.models import CheckResult, Claim
from sqlqueue_app.operations.watching.catalogue import BUILT_IN
from sqlqueue_app.operations.watching.custom import claim_of_custom
from sqlqueue_app.operations.watching.job import claims_begin
from sqlqueue_app.operations.watching.looks import CHECKS

_LONGEST_NAME = 255


def mute(alias: str, key: int, until: datetime | None, by: str) -> bool:
    """Have a result not count until an instant of the database's clock, or count again (None); False if its row is gone.

    It is run on, and a change is an event as ever.
    """
    values = {"muted_until": until, "muted_by": "" if until is None else by[:_LONGEST_NAME]}
    return CheckResult.objects.using(alias).filter(pk=key).update(**values) == 1


def can_be_run_now(name: str) -> bool:
    """Whether a worker can be asked to run it; each process runs those by itself in which it looks at itself."""
    return name not in BUILT_IN or name in CHECKS


def ask_to_run(alias: str, name: str) -> None:
    """Have the next look of any worker run the check, within 20 seconds. Checks that are run together with it are run as well."""
    claims = Claim.objects.using(alias)
    if name in BUILT_IN:
        claims.filter(name__startswith=claims_begin(BUILT_IN[name].every_seconds)).delete()
    else:
        claims.filter(name=claim_of_custom(name)).delete()
