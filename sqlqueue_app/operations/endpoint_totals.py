"""What endpoints have done since ever: added to as their samples are written, read for counters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from django.db import IntegrityError, transaction
from django.db.models import F

from sqlqueue_app.models import EndpointSample, EndpointTotal

TOTALS: Final = ("handled", "failures", "immediate_retries", "delayed_retries", "moved_to_error", "processing_seconds")


def add_to_totals(alias: str, samples: Iterable[EndpointSample]) -> None:
    """Add the samples to the totals of their instances: one statement each, two for a new one. Inside of a transaction.

    Always in the same order, so that processes that share rows never wait for each other in a circle.
    """
    sums: dict[tuple[str, str], dict[str, float]] = {}
    for sample in samples:
        of_instance = sums.setdefault((sample.endpoint, sample.instance), dict.fromkeys(TOTALS, 0))
        for name in TOTALS:
            of_instance[name] += getattr(sample, name)
    for (endpoint, instance), numbers in sorted(sums.items()):
        if not _add(alias, endpoint, instance, numbers):
            _begin(alias, endpoint, instance, numbers)


def _add(alias: str, endpoint: str, instance: str, numbers: Mapping[str, float]) -> bool:
    rows = EndpointTotal.objects.using(alias).filter(endpoint=endpoint, instance=instance)
    return rows.update(**{name: F(name) + number for name, number in numbers.items()}) > 0


def _begin(alias: str, endpoint: str, instance: str, numbers: Mapping[str, float]) -> None:
    total = EndpointTotal(endpoint=endpoint, instance=instance)
    for name, number in numbers.items():
        setattr(total, name, number)
    try:
        with transaction.atomic(using=alias):
            total.save(using=alias, force_insert=True)
    except IntegrityError:
        _add(alias, endpoint, instance, numbers)  # another process of the instance was first


def read_totals(alias: str) -> list[EndpointTotal]:
    """The totals of all instances, by endpoint; one statement."""
    return list(EndpointTotal.objects.using(alias).order_by("endpoint", "instance"))
