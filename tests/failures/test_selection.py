"""Selections of failed messages: in lists, in links, in the rows of operations."""

from __future__ import annotations

import json
import uuid
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from django.http import QueryDict
from hypothesis import given, strategies as st

from sqlqueue_app.failures.selection import CLASSIFIERS, MAX_IDS, MAX_PARTS, MAX_WORDS, FailureSelection
from sqlqueue_app.models import FailureGroup, FailureStatus
from sqlqueue_app.status.queues import address_of_queue
from tests.failures.index_rows import FAILED_AT, failure
from tests.support.databases import QueueDatabase

GROUP = uuid.UUID("876ec959-1e70-3f04-943c-0af496b82403")
HOUR = timedelta(hours=1)

FULL = FailureSelection(
    ids=(uuid.UUID(int=1), uuid.UUID(int=2)),
    group=GROUP,
    classifier="type",
    statuses=(FailureStatus.UNRESOLVED, FailureStatus.RETRY_ISSUED),
    endpoint="Sales & “more”",
    message_type="Shop.*",
    queue="error@[ops]",
    exception="OutOfStock",
    conversation="c=1",
    message_id="m/1",
    text='two words "and a phrase"',
    since=FAILED_AT - HOUR,
    until=FAILED_AT + HOUR,
    newest=7,
)


def of_query(text: str) -> FailureSelection:
    return FailureSelection.from_query(QueryDict(text))


def test_empty_selection_is_everything(queue_database: QueueDatabase) -> None:
    failure()
    failure(status=FailureStatus.ARCHIVED)

    assert FailureSelection().is_everything
    assert FailureSelection().queryset().count() == 2
    assert FailureSelection().to_query() == ""
    assert FailureSelection().in_words() == "all failed messages"


@pytest.mark.parametrize(
    ("criteria", "fields"),
    [
        ({"statuses": (FailureStatus.ARCHIVED,)}, {"status": FailureStatus.ARCHIVED}),
        ({"endpoint": "Billing"}, {"endpoint": "Billing"}),
        ({"endpoint": "bill*"}, {"endpoint": "Billing"}),
        ({"endpoint": "*ling"}, {"endpoint": "Billing"}),
        ({"endpoint": "B*ll*g"}, {"endpoint": "Billing"}),
        ({"exception": "*no*TEA*"}, {"exception_type": "shop.NoMoreTea"}),
        ({"exception": "a*%_*a"}, {"exception_type": "a.%_a"}),
        ({"message_type": "Shop.Cancel"}, {"message_type": "Shop.Cancel"}),
        ({"message_type": "Cancel"}, {"message_type": "Shop.Cancel"}),
        ({"queue": "error.2"}, {"queue": "error.2"}),
        ({"queue": "Billing"}, {"failed_q": "Billing"}),
        ({"exception": "LookupError"}, {"exception_type": "builtins.LookupError"}),
        ({"conversation": "c-1"}, {"conversation_id": "c-1"}),
        ({"message_id": "m-1"}, {"message_id": "m-1"}),
        ({"message_id": "M-*"}, {"message_id": "m-1"}),
        ({"message_id": str(uuid.UUID(int=7))}, {"id": uuid.UUID(int=7)}),
        ({"message_id": uuid.UUID(int=7).hex.upper()}, {"message_id": str(uuid.UUID(int=7))}),
        ({"text": "COFFEE"}, {"exception_message": "no coffee left"}),
        ({"text": '"coffee left" sales'}, {"exception_message": "no coffee left"}),
        ({"text": 'coffee "left'}, {"exception_message": "no coffee left"}),
        ({"text": str(uuid.UUID(int=7))}, {"id": uuid.UUID(int=7)}),
        ({"since": FAILED_AT + HOUR}, {"failed_at": FAILED_AT + HOUR}),
        ({"until": FAILED_AT}, {"failed_at": FAILED_AT - HOUR}),
        ({"group": GROUP}, {"address_group": GROUP}),
        ({"group": GROUP, "classifier": "type"}, {"type_group": GROUP}),
        ({"ids": (uuid.UUID(int=7), uuid.UUID(int=8))}, {"id": uuid.UUID(int=7)}),
    ],
)
def test_selection_finds_the_matching_messages(
    queue_database: QueueDatabase, criteria: dict[str, Any], fields: dict[str, Any]
) -> None:
    expected = failure(**fields)
    failure(exception_group=GROUP if "classifier" in criteria else None)
    if "text" not in criteria:
        failure(exception_message="left no coffee: 100%", message_type="Shop.NoCancel")

    assert [found.pk for found in FailureSelection(**criteria).queryset()] == [expected.pk]


@pytest.mark.parametrize("pattern", ["*lling*Bi*", "Bil*lling", "*%*", "B_ll*", "Bill*x*"])
def test_parts_of_a_pattern_match_in_their_order_and_once(queue_database: QueueDatabase, pattern: str) -> None:
    failure(endpoint="Billing")

    assert not FailureSelection(endpoint=pattern).queryset().exists()


def test_queue_is_found_by_its_name_or_its_address(queue_database: QueueDatabase) -> None:
    queue_database.configure(ENDPOINTS={"Sales": {}})
    address = address_of_queue("Billing")
    expected = failure(failed_q=address)
    failure(failed_q=address_of_queue("Sales"))

    for text in ("Billing", address):
        assert [found.pk for found in FailureSelection(queue=text).queryset()] == [expected.pk]


@pytest.mark.parametrize(
    "criteria", [{"text": '"'}, {"text": '""'}, {"endpoint": "*"}, {"endpoint": "**", "queue": "*"}, {"message_id": "*"}]
)
def test_criteria_that_match_every_message_are_everything(criteria: dict[str, Any]) -> None:
    assert FailureSelection(statuses=(FailureStatus.UNRESOLVED,), **criteria).is_everything


@pytest.mark.parametrize("criteria", [{"text": "x"}, {"endpoint": "S*"}, {"group": GROUP}, {"ids": (GROUP,)}, {"until": FAILED_AT}])
def test_narrowing_criteria_are_not_everything(criteria: dict[str, Any]) -> None:
    assert not FailureSelection(**criteria).is_everything


def test_every_database_accepts_all_criteria_at_once(queue_database: QueueDatabase) -> None:
    failure()

    assert FULL.queryset().count() == 0


def test_every_database_accepts_the_largest_selection(queue_database: QueueDatabase) -> None:
    words, pattern = " ".join(f"w{each}" for each in range(MAX_WORDS)), "*".join(f"p{each}" for each in range(MAX_PARTS))
    criteria = dict.fromkeys(("endpoint", "message_type", "queue", "exception", "conversation", "retried_to"), pattern)
    ids = ",".join(str(uuid.UUID(int=each)) for each in range(MAX_IDS))

    selection = of_query(urlencode({"ids": ids, "text": words, **criteria}))

    assert not selection.problems
    assert selection.queryset().count() == 0


def test_wildcards_of_sql_are_literal(queue_database: QueueDatabase) -> None:
    failure(endpoint="Sales_1")
    failure(endpoint="SalesX1")

    assert FailureSelection(endpoint="Sales_1").queryset().count() == 1
    assert FailureSelection(text="Sales_1").queryset().count() == 1
    assert FailureSelection(endpoint="%").queryset().count() == 0


def test_selection_survives_json_and_a_link() -> None:
    assert FailureSelection.from_json(json.loads(json.dumps(FULL.to_json()))) == FULL
    assert of_query(FULL.to_query()) == FULL
    assert of_query(urlencode(FULL.to_fields())) == FULL
    assert not of_query(FULL.to_query()).problems


@pytest.mark.parametrize("classifier", [*CLASSIFIERS.items()])
def test_classifier_has_two_names(classifier: tuple[str, str]) -> None:
    for name in classifier:
        assert of_query(f"group={GROUP}&{urlencode({'classifier': name})}").classifier == classifier[0]


def test_other_parameters_of_a_page_are_ignored() -> None:
    assert of_query("q=type:X&page=3&format=csv&nonsense=%00") == FailureSelection()
    assert not of_query("q=type:X&page=3").problems


@pytest.mark.parametrize(
    "query",
    [
        "ids=1",
        "ids=" + ",".join(str(uuid.UUID(int=each)) for each in range(MAX_IDS + 1)),
        "group=x",
        "statuses=broken",
        "since=yesterday",
        "since=2026-02-30T00:00:00Z",
        "until=0001-01-01T00:00:00%2B14:00",
        "text=" + "w+" * (MAX_WORDS + 1),
        "queue=" + "p*" * (MAX_PARTS + 1),
        "only=ids",
        "only=ids&ids=",
        "only=ids&endpoint=Sales",
    ],
)
def test_unreadable_criteria_select_nothing(queue_database: QueueDatabase, query: str) -> None:
    failure()

    selection = of_query(query)

    assert selection.problems
    assert selection.queryset().count() == 0
    assert selection.in_words() == "nothing"


def test_only_ids_ignores_the_other_criteria() -> None:
    chosen = uuid.UUID(int=1)

    assert of_query(f"only=ids&endpoint=Sales&ids={chosen}&ids={chosen}") == FailureSelection(ids=(chosen,))


@given(st.dictionaries(st.sampled_from([*FULL.to_json(), "only", "x"]), st.text(max_size=30), max_size=5))
def test_any_query_string_is_accepted(values: dict[str, str]) -> None:
    query = QueryDict(mutable=True)
    query.update(values)

    selection = FailureSelection.from_query(query)

    assert FailureSelection.from_query(QueryDict(selection.to_query())) == selection
    str(selection.queryset().query) if not selection.problems else None


@pytest.mark.parametrize("document", [None, [], "x", {"ids": 5}, {"ids": [None]}, {"unknown": 1}, {"since": {}}])
def test_invalid_stored_document_selects_nothing(document: object) -> None:
    assert FailureSelection.from_json(document).problems


def test_default_statuses_apply_only_without_criteria() -> None:
    unresolved, archived = FailureStatus.UNRESOLVED, FailureStatus.ARCHIVED

    assert FailureSelection().or_statuses(unresolved).statuses == (unresolved,)
    assert FailureSelection(statuses=(archived,)).or_statuses(unresolved).statuses == (archived,)
    assert FailureSelection(ids=(GROUP,)).or_statuses(unresolved).statuses == ()


def test_selection_is_described_in_words(queue_database: QueueDatabase) -> None:
    FailureGroup.objects.create(id=GROUP, classifier="Message Type", title="Shop.PlaceOrder")

    assert FailureSelection(group=GROUP).in_words() == "the group “Shop.PlaceOrder”"
    assert FailureSelection(ids=(GROUP,)).in_words() == f"the message {GROUP}"
    words = FULL.in_words()
    assert "2 chosen messages; the group “Shop.PlaceOrder”; endpoint Sales & “more”" in words
    assert words.endswith("failed before 2026-11-21 13:00:00 UTC; unresolved, retry issued")
