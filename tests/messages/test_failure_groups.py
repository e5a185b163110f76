"""Groups of failures: titles and ids of ServiceControl's own classifiers, and those of our failures."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from sqlqueue_app.messages.failure_groups import (
    CLASSIFIERS,
    deterministic_guid,
    exception_title,
    first_frame,
    groups_of,
    processing_endpoint,
    unique_message_id,
)
from sqlqueue_app.receiving.error_queue import failure_of
from tests.support.databases import ROOT

GOLDEN = [json.loads(line) for line in (ROOT / "tests/golden/failure-groups.jsonl").read_text(encoding="utf-8").splitlines()]
HEADERS = {
    "NServiceBus.MessageId": "m-1",
    "NServiceBus.FailedQ": "Sales@dbo",
    "NServiceBus.EnclosedMessageTypes": "Shop.PlaceOrder, Shop, Version=1.0.0.0;Shop.ICommand, Shop",
    "NServiceBus.ProcessingEndpoint": "Sales",
    "NServiceBus.ProcessingMachine": "mill",
    "$.diagnostics.hostid": "0a0b0c0d0e0f00010203040506070809",
    "NServiceBus.ExceptionInfo.ExceptionType": "shop.OutOfStock",
}


@pytest.mark.parametrize("case", GOLDEN, ids=[f"{number}" for number in range(len(GOLDEN))])
def test_titles_and_ids_are_those_of_service_control(case: dict[str, Any]) -> None:
    title = exception_title(case["type"], case["message"], case["trace"])

    assert title == case["title"]
    assert str(CLASSIFIERS["exception"].group_id(title)) == case["group_id"]


def test_group_id_is_an_md5_in_dotnet_byte_order() -> None:
    assert str(deterministic_guid("Message Type", "Shop.PlaceOrder")) == "876ec959-1e70-3f04-943c-0af496b82403"


def test_failure_is_in_one_group_of_each_classifier() -> None:
    titles = {group.classifier.name: group.title for group in groups_of(HEADERS)}

    assert titles == {
        "Exception Type and Stack Trace": "shop.OutOfStock: No stacktrace",
        "Message Type": "Shop.PlaceOrder",
        "Endpoint Address": "Sales@dbo",
        "Endpoint Instance": "0a0b0c0d0e0f00010203040506070809",
        "Endpoint Name": "Sales",
    }
    assert {group.id for group in groups_of(HEADERS)} == {deterministic_guid(*each) for each in titles.items()}


def test_missing_header_makes_no_group() -> None:
    assert [group.title for group in groups_of({})] == [": No stacktrace"]
    # To ServiceControl, an endpoint without a machine has neither a name nor an instance.
    assert [group.title for group in groups_of({"NServiceBus.FailedQ": "Sales"})] == [": No stacktrace", "Sales"]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"NServiceBus.Metric.InstanceId": "one"}, "one"),
        ({"$.diagnostics.hostid": None}, "0" * 32),
        ({"$.diagnostics.hostid": "no id"}, None),
        ({"NServiceBus.ProcessingMachine": None, "NServiceBus.ProcessingEndpoint": None}, "0a0b0c0d0e0f00010203040506070809"),
    ],
)
def test_instance_is_named_by_the_metrics_or_by_the_host(changed: dict[str, str | None], expected: str | None) -> None:
    assert CLASSIFIERS["instance"].title_of({**HEADERS, **changed}) == expected


def test_message_has_the_same_id_at_every_failure() -> None:
    first = unique_message_id(HEADERS, native_id="row")

    assert first == deterministic_guid("m-1", "Sales")
    assert unique_message_id({"ServiceControl.Retry.UniqueMessageId": str(first)}, native_id="row") == first
    assert unique_message_id({**HEADERS, "ServiceControl.Retry.UniqueMessageId": "{}"}, native_id="row") == first
    assert unique_message_id({}, native_id="row") == deterministic_guid("row", "")


@pytest.mark.parametrize(
    ("headers", "endpoint"),
    [
        ({"NServiceBus.ProcessingEndpoint": "Sales", "NServiceBus.FailedQ": "Other@dbo"}, "Sales"),
        ({"NServiceBus.FailedQ": "Other@dbo", "NServiceBus.ReplyToAddress": "Web@dbo"}, "Other"),
        ({"NServiceBus.ReplyToAddress": "Web@dbo"}, "Web"),
        ({}, ""),
    ],
)
def test_endpoint_of_a_failure_is_found(headers: dict[str, str | None], endpoint: str) -> None:
    assert processing_endpoint(headers) == endpoint


class Handlers:
    def place(self) -> None:
        (lambda: self.fail())()

    def fail(self) -> None:
        raise KeyError("A-1")


def test_title_of_our_failure_has_its_innermost_frame() -> None:
    with pytest.raises(KeyError) as caught:
        Handlers().place()
    failure = failure_of(caught.value, unrecoverable=False)

    title = exception_title(failure.exception_type, failure.message, failure.stack_trace)

    assert title == f"KeyError: {__name__}.Handlers.fail()"
    # Another message, another line: the same group.
    moved = replace(failure, message="'B-2'", stack_trace=failure.stack_trace.replace("A-1", "B-2").replace(":line ", ":line 1"))
    assert exception_title(moved.exception_type, moved.message, moved.stack_trace) == title


def test_exception_without_message_has_its_frame() -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is empty
        raise ValueError
    failure = failure_of(caught.value, unrecoverable=False)

    title = exception_title(failure.exception_type, failure.message, failure.stack_trace)

    assert title.startswith(f"ValueError: {__name__}.test_exception")


@pytest.mark.parametrize(
    ("trace", "frame"),
    [
        # A line of source in a Python traceback can look like a frame; ServiceControl also reads it as one.
        (
            '  File "/a.py", line 1, in f\n    return handler.handle(message, context)\nValueError',
            "handler.handle(message, context)",
        ),
        ("at A.B (String s)", "A.B(String s)"),
        ("at A.B(String s) in /a b.cs:line 4.\r", "A.B(String s)"),
        ("at A.B(String s) in C:\\a(b c).cs:line 4", "A.B(String s)"),
        ("at A.B(String s) in a.cs:line 4", None),
        ("at A.B(String s) [0x00012] in <a.cs>:7 ", "A.B(String s)"),
        ("at .B()", None),
        ("at A.()", None),
        ("at A.b(c).D()", "A.b(c).D()"),
        ("at A.B()x", None),
        ("at A.B", None),
        ("A.B()", None),
        ("", None),
    ],
)
def test_frame_is_a_whole_line(trace: str, frame: str | None) -> None:
    assert first_frame(trace) == frame


@pytest.mark.parametrize(
    "hostile",
    [
        "at " + "a.b(" * 100_000,
        "at " + "a.b(" * 100_000 + ") c)",
        "at a.b(" + "c d, " * 100_000,
        ("at " + "(" * 4_000 + "\n") * 25,
        "at a.b(" + ") in /" * 50_000,
        "at a.b(c d)" + " [0x0] in <" * 20_000,
        "at " * 100_000,
        "at a" + "\n.b" * 100_000,
        ":line 1" * 100_000,
    ],
)
def test_time_grows_linearly_with_the_length(hostile: str) -> None:
    # An expression that backtracks would not end within the time of a session.
    assert first_frame(hostile) in (None, hostile[3:])
