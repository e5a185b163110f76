"""Work that one process of a cluster does for all, claimed in the database (design 6.8)."""

from __future__ import annotations

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
    if until <= before <= until + AHEAD_AT_MOST:
        return False
    return claims.filter(until=before).update(until=until) == 1


def forget_claims(alias: str, before: datetime) -> None:
    """Delete claims that nobody has moved since: of work that is not done any more, or under another name."""
    Claim.objects.using(alias).filter(until__lt=before).delete()
