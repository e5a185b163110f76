"""Settings for the satellite queues of transports 1.x to 3.x, and conflicts with other names."""

# ruff: noqa: E501 (whole messages)

from __future__ import annotations

from typing import Any

import pytest

from sqlqueue_app.conf import settings_problems
from sqlqueue_app.conf.settings import EndpointSettings, SatelliteSettings

S = 'SQLQUEUE["ENDPOINTS"]["Sales"]'
LONG = "x" * 40


def sales(**more: Any) -> dict[str, Any]:
    return {"LEGACY_SATELLITES": True, **more}


@pytest.mark.parametrize(
    ("endpoints", "code", "message"),
    [
        (
            {"Sales": sales(), "Sales.Retries": {}},
            "E017",
            f"{S}[\"LEGACY_SATELLITES\"] uses the queue 'Sales.Retries', which is the queue of endpoint 'Sales.Retries' already",
        ),
        (
            {"Sales": sales(INSTANCE="Timeouts")},
            "E017",
            f"{S}[\"INSTANCE\"] uses the queue 'Sales.Timeouts', which is the satellite 'Sales.Timeouts' of endpoint 'Sales' already",
        ),
        (
            {"Sales": sales(ERROR_QUEUE='"Sales.Retries"')},
            "E018",
            f'{S}["ERROR_QUEUE"] is \'"Sales.Retries"\', expected a queue that the endpoint does not receive from',
        ),
        (
            {LONG: sales()},
            "E022",
            f'SQLQUEUE["ENDPOINTS"]["{LONG}"]["LEGACY_SATELLITES"]: the table name \'{LONG}.TimeoutsDispatcher\' is 59 bytes long; '
            "postgresql allows 55 bytes here: choose a shorter name",
        ),
    ],
)
def test_a_queue_that_collides_is_one_problem(endpoints: dict[str, Any], code: str, message: str) -> None:
    (problem,) = settings_problems({"ENDPOINTS": endpoints}, dialects={"default": "postgresql"})
    assert (problem.code, problem.message) == (f"sqlqueue.{code}", message)


def test_satellite_entry_is_no_second_receiver() -> None:
    raw = {"ENDPOINTS": {"Sales": sales(SATELLITES={"Sales.Retries": {"MAX_CONCURRENCY": 1}})}}
    assert settings_problems(raw, dialects={"default": "postgresql"}) == []


def test_satellite_queues_follow_the_main_one_by_default() -> None:
    apart = {
        "Sales.Retries": SatelliteSettings(name="Sales.Retries", max_concurrency=1),
        "Sales.Timeouts": SatelliteSettings(name="Sales.Timeouts"),
        "Fast": SatelliteSettings(name="Fast", max_concurrency=3),
    }
    known = EndpointSettings(name="Sales", legacy_satellites=True, satellites=apart)
    names = ("Sales.Retries", "Sales.Timeouts", "Sales.TimeoutsDispatcher")
    assert known.legacy_satellite_names() == names
    assert known.receiving_queue_names() == ("Sales", *names, "Fast")
    assert [known.satellite_concurrency(name, 10) for name in (*names, "Fast")] == [1, 10, 10, 3]
    assert [known.has_own_concurrency(name) for name in (*names, "Fast")] == [True, False, False, True]
    assert EndpointSettings(name="Sales", satellites=apart).receiving_queue_names() == ("Sales", *apart)
