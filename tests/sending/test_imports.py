"""Public names: importable without Django's settings, but for models, each under the name in `__all__`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import sqlqueue_app
from tests.support.databases import ROOT


def python(code: str) -> subprocess.CompletedProcess[str]:
    """Run a fresh interpreter without Django settings."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DJANGO")}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


# A model, and its page in the admin.
NEED_DJANGO = {"Saga", "SagaAdmin"}


@pytest.mark.parametrize("name", sorted({*sqlqueue_app.__all__, "__version__"} - NEED_DJANGO))
def test_each_name_is_importable_without_settings(name: str) -> None:
    answer = python(f"import sqlqueue_app; sqlqueue_app.{name}; from sqlqueue_app import {name}")

    assert (answer.returncode, answer.stderr) == (0, "")


def test_package_alone_imports_no_django() -> None:
    answer = python("import sys, sqlqueue_app; print([name for name in sys.modules if name.startswith('django')])")

    assert answer.stdout.strip() == "[]"


def test_star_import_gives_exactly_all() -> None:
    found: dict[str, object] = {}
    exec("from sqlqueue_app import *", found)

    assert {name for name in found if not name.startswith("__")} == set(sqlqueue_app.__all__)


def test_names_are_the_original_objects() -> None:
    from sqlqueue_app.browsing.lookup import (
        MessageState,
        MessageStatus,
        RevokeResult,
        amessage_status,
        arevoke,
        message_status,
        revoke,
    )
    from sqlqueue_app.health_checks import health_check
    from sqlqueue_app.messages.errors import QueueNotFound, SoftTimeLimitExceeded, SqlQueueError, Unrecoverable
    from sqlqueue_app.messages.types import message_type
    from sqlqueue_app.policies.recoverability import Discard, MoveToError, Retry, RetryLater, RetryNow, default_policy
    from sqlqueue_app.receiving.context import MessageContext
    from sqlqueue_app.receiving.handlers import handles
    from sqlqueue_app.receiving.requests import close_callbacks, request
    from sqlqueue_app.sagas.marks import continues, on_timeout, starts
    from sqlqueue_app.sagas.model import Saga
    from sqlqueue_app.sagas.saga_admin import SagaAdmin
    from sqlqueue_app.sending.sender import apublish, asend, asend_many, publish, send, send_many, subscribe, unsubscribe
    from sqlqueue_app.sending.subscribers import forget_subscribers
    from sqlqueue_app.status.control import pause, resume, set_concurrency
    from sqlqueue_app.status.scheduling import schedule, unschedule

    expected = {
        "Retry": Retry, "SoftTimeLimitExceeded": SoftTimeLimitExceeded,
        "Unrecoverable": Unrecoverable, "handles": handles, "message_type": message_type, "send": send, "send_many": send_many,
        "asend": asend, "asend_many": asend_many, "apublish": apublish,
        "publish": publish, "subscribe": subscribe, "unsubscribe": unsubscribe,
        "MessageContext": MessageContext, "SqlQueueError": SqlQueueError, "QueueNotFound": QueueNotFound, "pause": pause,
        "resume": resume, "set_concurrency": set_concurrency, "close_callbacks": close_callbacks,
        "forget_subscribers": forget_subscribers,
        "Discard": Discard, "MoveToError": MoveToError, "RetryLater": RetryLater, "RetryNow": RetryNow,
        "revoke": revoke, "arevoke": arevoke, "RevokeResult": RevokeResult, "message_status": message_status,
        "amessage_status": amessage_status, "MessageStatus": MessageStatus, "MessageState": MessageState,
        "default_policy": default_policy, "request": request, "health_check": health_check,
        "schedule": schedule, "unschedule": unschedule, "Saga": Saga, "SagaAdmin": SagaAdmin,
        "starts": starts, "continues": continues, "on_timeout": on_timeout,
    }  # fmt: skip
    assert {name: getattr(sqlqueue_app, name) for name in sqlqueue_app.__all__} == expected
    assert set(sqlqueue_app.__all__) <= set(dir(sqlqueue_app))


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'sqlqueue_app' has no attribute 'sent'"):
        sqlqueue_app.sent  # noqa: B018


def test_send_without_settings_is_improperly_configured() -> None:
    answer = python("import sqlqueue_app; sqlqueue_app.send('Sales.PlaceOrder', {})")

    assert answer.returncode == 1
    assert "ImproperlyConfigured" in answer.stderr
