"""Work that one process of a cluster does for all, claimed in the database (design 6.8)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from django.db import IntegrityError, transaction

from sqlqueue_app.models import Claim

# A claim that is further ahead was made before the clock was put back, and would keep everybody from the work until it comes.
AHEAD_AT_MOST = timedelta(minutes=15)


def claim(alias: str, name: str, until: datetime) -> bool:
    """Take on the work of this name up to an instant of the database's clock; False if somebody has, or is faster.

    Who is too late has paid one SELECT. Inside of a transaction the claim is given back when that is rolled back, and others
    who want it wait until then.
    """
    claims = Claim.objects.using(alias).filter(name=name)
    before = claims.values_list("until", flat=True).first()
    if before is None:
        try:
            with transaction.atomic(using=alias):
                claims.create(name=name, until=until)
        except IntegrityError:
            return False
        return True
    if _is_claimed(before, until):
        return False
    return claims.filter(until=before).update(until=until) == 1


def due(alias: str, pieces: Mapping[str, datetime]) -> list[str]:
    """Of pieces of work, each up to an instant, those that this process takes on: as `claim`, with one SELECT for all."""
    until = dict(Claim.objects.using(alias).filter(name__in=list(pieces)).values_list("name", "until"))
    waiting = [name for name, wanted in pieces.items() if not _is_claimed(until.get(name), wanted)]
    return [name for name in waiting if claim(alias, name, pieces[name])]


def one_at_a_time(alias: str, name: str, now: datetime) -> None:
    """Keep others who call this with the same name waiting until the end of the transaction, which must be open."""
    claims = Claim.objects.using(alias).filter(name=name)
    if not claims.update(until=now):
        try:
            with transaction.atomic(using=alias):
                claims.create(name=name, until=now)
        except IntegrityError:
            claims.update(until=now)


def _is_claimed(before: datetime | None, until: datetime) -> bool:
    return before is not None and until <= before <= until + AHEAD_AT_MOST


def forget_claims(alias: str, before: datetime) -> None:
    """Delete claims that nobody has moved since: of work that is not done any more, or under another name."""
    Claim.objects.using(alias).filter(until__lt=before).delete()
