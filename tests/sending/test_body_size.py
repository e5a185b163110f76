"""MAX_BODY_SIZE: a body that is too large is refused when it is sent."""

from __future__ import annotations

from typing import Any

import pytest

from sqlqueue_app import handles, publish, send, send_many
from sqlqueue_app.messages.errors import MessageBodyError
from tests.support.bench import Bench, Calls

FITS, TOO_LARGE = {"text": "x" * 80}, {"text": "x" * 100}


@pytest.fixture
def limited(sqlite_bench: Bench) -> Bench:
    sqlite_bench.database.configure(ENDPOINTS={"Sales": {}}, ROUTES={"Test.*": "Sales"}, MAX_BODY_SIZE=100)
    sqlite_bench.install()
    return sqlite_bench


def test_larger_body_is_refused(limited: Bench) -> None:
    send("Test.Message", FITS)
    with pytest.raises(MessageBodyError) as refused:
        send("Test.Message", TOO_LARGE)
    assert str(refused.value) == (
        'the body of a Test.Message has 111 bytes, more than the 100 bytes of SQLQUEUE["MAX_BODY_SIZE"]: set CLAIM_CHECK, '
        "send a reference to the data, or raise the limit"
    )
    with pytest.raises(MessageBodyError, match=r"messages\[1\]: the body of a Test.Message has 111 bytes"):
        send_many([("Test.Message", FITS), ("Test.Message", TOO_LARGE)])
    with pytest.raises(MessageBodyError, match=r"the body of a Test\.Happened has 111 bytes"):
        publish("Test.Happened", TOO_LARGE)
    assert len(limited.rows("Sales")) == 1


def test_handler_that_replies_with_a_larger_body_fails(limited: Bench, calls: Calls) -> None:
    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        with pytest.raises(MessageBodyError):
            context.send_local("Test.Message", TOO_LARGE)
        calls.add("refused")

    send("Test.Message", FITS)
    limited.run()
    assert calls.seen == ["refused"]


def test_limit_can_be_turned_off(limited: Bench) -> None:
    limited.database.configure(ENDPOINTS={"Sales": {}}, ROUTES={"Test.*": "Sales"}, MAX_BODY_SIZE=None)
    send("Test.Message", {"text": "x" * (17 << 20)})
    assert len(limited.rows("Sales")) == 1
