"""A saga is started, continued and completed by messages; its row, its messages and its work commit together."""

from __future__ import annotations

import enum
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pytest
from django.apps.registry import Apps
from django.core import checks
from django.db import models
from django.utils import timezone

import sqlqueue_app
from sqlqueue_app import Retry, Saga, Unrecoverable, asend, continues, handles, message_type, on_timeout, send, starts
from sqlqueue_app.messages.errors import ConfigurationError, HandlerError, MessageTypeError
from sqlqueue_app.messages.types import registry as message_types
from sqlqueue_app.sending.sender import sender_as
from sqlqueue_app.status.retention import delete_old_rows
from tests.support.bench import MODES, Bench, Calls
from tests.support.saga_app import REGISTRY, NumberedSaga, OrderSaga, OrderSagas, create_table
from tests.support.worker_processes import address

DAY = 86_400


def test_messages_start_continue_and_complete_a_saga(bench: Bench, orders: OrderSagas) -> None:
    first = orders.place("42", total=3)
    bench.run()
    (saga,) = orders.rows()
    assert (saga.order_id, saga.total, saga.paid, saga.completed_at) == ("42", 3, False, None)
    assert saga.original_message_id == first

    orders.pay("42")
    orders.place("43")
    bench.run()
    assert [(each.order_id, each.paid) for each in orders.rows()] == [("42", True), ("43", False)]

    orders.ship("42")
    bench.run()
    saga, other = orders.rows()
    assert saga.completed_at is not None
    assert (other.shipped, other.completed_at) == (False, None)
    assert [(each["what"], each["type"]) for each in saga.history] == [
        ("started", "Test.PlaceOrder"),
        ("continued", "Test.OrderPaid"),
        ("continued", "Test.OrderShipped"),
    ]
    assert saga.history[0]["changed"] == {"order_id": "42", "total": "3", "paid": "False", "shipped": "False"}
    assert saga.history[1]["changed"] == {"paid": "True"}
    assert (saga.history[2]["completed"], "completed" in saga.history[1]) == (True, False)
    assert orders.sent() == ["Test.Bill", "Test.Bill"]
    assert bench.rows("error") == []


def test_starting_message_continues_a_saga_that_runs(bench: Bench, orders: OrderSagas) -> None:
    orders.place("42", total=3)
    orders.place("42", total=4)
    bench.run()
    (saga,) = orders.rows()
    assert saga.total == 7
    assert [each["what"] for each in saga.history] == ["started", "continued"]


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "none"])
def test_failed_attempt_leaves_nothing(bench: Bench, calls: Calls, mode: str) -> None:
    class Failing(NumberedSaga):
        @starts("Test.Begin")
        def begin(self, message: Any, context: Any) -> None:
            context.send("Test.Out", {}, to=address(bench, "out"))
            self.request_timeout(context, "Test.Late", delay=60)
            if calls.add(self.pk) < 3:
                raise LookupError("fails twice")

        @on_timeout("Test.Late")
        def late(self, message: Any, context: Any) -> None: ...

    create_table(bench.database.alias, Failing)
    bench.install_queues("out")
    bench.configure(IMMEDIATE_RETRIES=2, TRANSACTION_MODE=mode)
    bench.put_message("Test.Begin", {"Number": 5})
    bench.run()

    sagas = OrderSagas(bench)
    (saga,) = sagas.rows(Failing)
    assert len(set(calls.seen)) == 3, "each attempt starts from scratch"
    assert saga.pk == calls.seen[-1]
    assert len(saga.history) == len(saga.timeouts) == len(sagas.delayed()) == len(bench.rows("out")) == 1


def test_retry_and_path_are_those_of_the_method(bench: Bench, calls: Calls) -> None:
    class Retried(NumberedSaga):
        @starts("Test.Begin", retry=Retry(immediate=1, delays=[]))
        def begin(self, message: Any, context: Any) -> None:
            calls.add(context.handler)
            raise LookupError

    create_table(bench.database.alias, Retried)
    bench.configure(IMMEDIATE_RETRIES=5)
    bench.put_message("Test.Begin", {"number": 5})
    bench.run()
    assert len(calls.seen) == 2
    assert calls.seen[0].endswith("Retried.begin")
    (headers,) = bench.headers("error")
    assert headers["NServiceBus.ExceptionInfo.Data.Handler type"] == calls.seen[0]
    assert OrderSagas(bench).rows(Retried) == []


def test_timeout_arrives_at_its_saga(bench: Bench, orders: OrderSagas) -> None:
    orders.place("42", expires=DAY)
    orders.place("43", expires=DAY)
    orders.pay("43")
    bench.run()
    saga = orders.rows()[0]
    assert saga.next_timeout_at is not None
    assert abs(saga.next_timeout_at - timezone.now() - timedelta(days=1)) < timedelta(minutes=30)
    assert [each["type"] for each in saga.timeouts] == ["Test.OrderExpired"]

    orders.bring_nearer(timedelta(days=1, minutes=1))
    bench.run()
    for saga in orders.rows():
        assert (saga.completed_at is not None, saga.timeouts, saga.next_timeout_at) == (True, [], None)
        assert (saga.history[-1]["what"], saga.history[-1]["type"]) == ("timeout", "Test.OrderExpired")
    assert sorted(orders.sent()) == ["Test.Bill", "Test.Bill", "Test.Cancelled", "Test.Cancelled"]


def test_timeout_of_a_completed_saga_is_dropped(bench: Bench, orders: OrderSagas, events: Any) -> None:
    orders.place("42", expires=DAY)
    orders.pay("42")
    orders.ship("42")
    bench.run(max_concurrency=1)
    orders.bring_nearer(timedelta(days=2))
    bench.run()
    assert "saga_timeout_dropped" in events()
    assert orders.sent() == ["Test.Bill"]
    assert bench.rows("error") == []
    assert bench.rows("Sales") == []
    assert orders.delayed() == []


def test_timeout_of_a_former_saga_does_not_reach_its_successor(bench: Bench, orders: OrderSagas) -> None:
    orders.place("42", expires=DAY)
    orders.pay("42")
    orders.ship("42")
    bench.run(max_concurrency=1)
    (former,) = orders.rows()
    orders.place("42")
    bench.run()
    (successor,) = orders.rows()
    assert successor.pk != former.pk
    assert successor.completed_at is None
    orders.bring_nearer(timedelta(days=2))
    bench.run()
    assert orders.rows()[0].completed_at is None
    assert "Test.Cancelled" not in orders.sent()


def test_one_method_starts_a_saga_and_handles_its_timeout(bench: Bench, calls: Calls) -> None:
    class Polling(NumberedSaga):
        @starts("Test.Poll")
        @on_timeout("Test.Poll")
        def poll(self, message: Any, context: Any) -> None:
            if calls.add(self.pk) == 1:
                self.request_timeout(context, "Test.Poll", delay=0)

    create_table(bench.database.alias, Polling)
    bench.put_message("Test.Poll", {"number": 5})
    bench.run()
    (saga,) = OrderSagas(bench).rows(Polling)
    assert calls.seen == [saga.pk, saga.pk]
    assert [each["what"] for each in saga.history] == ["started", "timeout"]
    assert saga.timeouts == []


def test_completed_saga_waits_for_no_timeout(bench: Bench) -> None:
    class Ended(NumberedSaga):
        @starts("Test.Begin")
        def begin(self, message: Any, context: Any) -> None:
            self.request_timeout(context, "Test.Late", delay=DAY)
            self.complete()
            self.request_timeout(context, "Test.Late", delay=DAY)

        @on_timeout("Test.Late")
        def late(self, message: Any, context: Any) -> None: ...

    create_table(bench.database.alias, Ended)
    bench.put_message("Test.Begin", {"number": 5})
    bench.run()
    (saga,) = OrderSagas(bench).rows(Ended)
    assert (saga.timeouts, saga.next_timeout_at) == ([], None)
    assert len(OrderSagas(bench).delayed()) == 2


@pytest.mark.parametrize("completed", [False, True])
def test_message_without_a_saga_is_dropped(bench: Bench, orders: OrderSagas, events: Any, completed: bool) -> None:
    if completed:
        orders.place("42")
        orders.ship("42")
        orders.pay("42")
        bench.run(max_concurrency=1)
    orders.pay("42")
    bench.run()
    assert "saga_not_found" in events()
    assert bench.rows("error") == []
    assert len(orders.rows()) == int(completed)


def test_not_found_decides_about_messages_without_a_saga(bench: Bench, calls: Calls) -> None:
    class Strict(NumberedSaga):
        @starts("Test.Begin")
        def begin(self, message: Any, context: Any) -> None: ...

        @continues("Test.Go")
        def go(self, message: Any, context: Any) -> None: ...

        @classmethod
        def not_found(cls, message: Any, context: Any) -> None:
            context.reply("Test.Unknown", {})
            raise Unrecoverable(f"no saga {message['number']}")

    create_table(bench.database.alias, Strict)
    bench.install_queues("out")
    bench.put_message("Test.Go", {"number": 7}, **{"NServiceBus.ReplyToAddress": address(bench, "out")})
    bench.run()
    (headers,) = bench.headers("error")
    assert headers["NServiceBus.ExceptionInfo.Message"] == "no saga 7"
    assert bench.rows("out") == []


def test_coroutine_as_not_found_is_an_error(bench: Bench) -> None:
    class Asynchronous(NumberedSaga):
        @continues("Test.Go")
        async def go(self, message: Any, context: Any) -> None: ...

        @classmethod
        async def not_found(cls, message: Any, context: Any) -> None: ...  # type: ignore[override]

    create_table(bench.database.alias, Asynchronous)
    bench.put_message("Test.Go", {"number": 7})
    bench.run()
    (headers,) = bench.headers("error")
    assert "returned a coroutine" in headers["NServiceBus.ExceptionInfo.Message"]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "has no 'number'"),
        ({"number": None}, "it is empty"),
        ({"number": "seven"}, "must be an integer"),
        ({"number": 2**70}, "less than or equal"),
    ],
)
def test_message_that_belongs_to_no_saga_fails_at_once(bench: Bench, calls: Calls, body: dict[str, Any], text: str) -> None:
    class Numbered(NumberedSaga):
        number = models.BigIntegerField(unique=True)

        @starts("Test.Begin")
        def begin(self, message: Any, context: Any) -> None:
            calls.add(1)

    create_table(bench.database.alias, Numbered)
    bench.configure(IMMEDIATE_RETRIES=3)
    bench.put_message("Test.Begin", body)
    bench.run()
    (headers,) = bench.headers("error")
    assert text in headers["NServiceBus.ExceptionInfo.Message"]
    assert calls.seen == []


TEXT: Any = models.TextField(unique=True)
WHOLE: Any = models.IntegerField(unique=True)


def saga_found_by(field: Any, bench: Bench, calls: Calls, message: Any = "Test.Begin") -> None:
    class Found(Saga):
        correlate_by = "mark"
        mark = field.clone()

        @starts(message)
        def begin(self, message: Any, context: Any) -> None:
            calls.add(self.mark)

        class Meta:
            app_label = "sqlqueue_app"
            apps = REGISTRY

    create_table(bench.database.alias, Found)


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        (TEXT, ["a"], "it is not text"),
        (TEXT, {"a": 1}, "it is not text"),
        (TEXT, "a\0b", "it contains NUL or half of a surrogate pair"),
        (TEXT, "\ud800", "it contains NUL or half of a surrogate pair"),
        (WHOLE, 4.5, "it is not a whole number"),
        (models.FloatField(unique=True), "nan", "it is not a number"),
        (models.DateField(unique=True), 20261127, "must be str"),
        (models.DateTimeField(unique=True), [5], "must be str"),
        (models.DurationField(unique=True), 5, "expected string"),
        # each version of Django words it differently
        (models.BinaryField(unique=True), "x", "mark is 'x': "),
    ],
)
def test_value_that_the_field_cannot_hold_fails_at_once(bench: Bench, calls: Calls, field: Any, value: Any, text: str) -> None:
    saga_found_by(field, bench, calls)
    bench.configure(IMMEDIATE_RETRIES=3)
    bench.put_message("Test.Begin", {"mark": value})
    bench.run()
    (headers,) = bench.headers("error")
    assert headers["NServiceBus.ExceptionInfo.ExceptionType"].endswith("Unrecoverable")
    assert text in headers["NServiceBus.ExceptionInfo.Message"]
    assert calls.seen == []


@pytest.mark.parametrize(("field", "value", "found"), [(WHOLE, 4.0, 4), (WHOLE, "4", 4), (TEXT, 4, "4"), (TEXT, "é", "é")])
def test_value_of_another_type_that_the_field_holds_finds_the_saga(
    bench: Bench, calls: Calls, field: Any, value: Any, found: Any
) -> None:
    saga_found_by(field, bench, calls)
    bench.put_message("Test.Begin", {"mark": value})
    bench.run()
    assert calls.seen == [found]


class Colour(enum.Enum):
    RED = "red"


def test_member_of_an_enum_is_the_value_in_the_body(bench: Bench, calls: Calls) -> None:
    @message_type("Test.Begin")
    @dataclass
    class Begin:
        mark: Colour

    try:
        saga_found_by(TEXT, bench, calls, Begin)
        bench.put_message("Test.Begin", {"mark": "red"})
        bench.run()
        assert calls.seen == ["red"]
    finally:
        found = message_types._by_name.pop("Test.Begin")
        message_types._by_class.pop(found.cls)


def test_message_without_what_correlate_reads_fails_at_once(bench: Bench, calls: Calls) -> None:
    class Nested(NumberedSaga):
        @starts("Test.Begin", correlate=lambda message: message["order"]["number"])
        def begin(self, message: Any, context: Any) -> None:
            calls.add(self.number)

    create_table(bench.database.alias, Nested)
    bench.configure(IMMEDIATE_RETRIES=3)
    bodies: tuple[dict[str, Any], ...] = ({"order": {"number": 1}}, {"order": {}}, {"order": None})
    for body in bodies:
        bench.put_message("Test.Begin", body)
        bench.run()
    assert calls.seen == [1]
    missing, null = bench.headers("error")
    for headers in (missing, null):
        assert headers["NServiceBus.ExceptionInfo.ExceptionType"].endswith("Unrecoverable")
    assert "correlate raised KeyError: 'number'" in missing["NServiceBus.ExceptionInfo.Message"]


def test_saga_may_inherit_from_a_model_with_a_table(bench: Bench, calls: Calls) -> None:
    class Parent(NumberedSaga):
        class Meta:
            app_label = "sqlqueue_app"
            apps = REGISTRY

    class Child(Parent):
        count = models.IntegerField(default=0)

        class Meta:
            app_label = "sqlqueue_app"
            apps = REGISTRY

        @starts("Test.Begin")
        def begin(self, message: Any, context: Any) -> None:
            self.count += 1
            self.request_timeout(context, "Test.Late", delay=0)

        @on_timeout("Test.Late")
        def late(self, message: Any, context: Any) -> None:
            calls.add(self.count)

    create_table(bench.database.alias, Parent)
    create_table(bench.database.alias, Child)
    assert "sqlqueue.E052" not in ids(Child)
    bench.put_message("Test.Begin", {"number": 1})
    bench.run()
    bench.run()
    assert calls.seen == [1]
    assert "parent_ptr" not in OrderSagas(bench).rows(Child)[0].history[0]["changed"]


def test_saga_may_have_an_id_of_another_kind(bench: Bench, calls: Calls) -> None:
    class Counted(NumberedSaga):
        id: Any = models.BigAutoField(primary_key=True)

        @starts("Test.Begin")
        def begin(self, message: Any, context: Any) -> None:
            self.request_timeout(context, "Test.Late", delay=0)

        @on_timeout("Test.Late")
        def late(self, message: Any, context: Any) -> None:
            calls.add(self.pk)

    create_table(bench.database.alias, Counted)
    bench.put_message("Test.Begin", {"number": 1})
    bench.run()
    bench.run()
    assert calls.seen == [1]


def test_order_of_the_model_joins_no_other_table(bench: Bench, calls: Calls) -> None:
    """PostgreSQL refuses to lock the optional side of a join, and would also lock the rows of the joined table."""

    class Customer(models.Model):  # noqa: DJ008
        name = models.TextField()

        class Meta:
            app_label = "sqlqueue_app"
            apps = REGISTRY

    class Ordered(NumberedSaga):
        customer = models.ForeignKey(Customer, models.CASCADE, null=True)

        class Meta:
            app_label = "sqlqueue_app"
            apps = REGISTRY
            ordering = ("customer__name",)

        @starts("Test.Begin")
        def begin(self, message: Any, context: Any) -> None:
            calls.add(self.number)

    create_table(bench.database.alias, Customer)  # type: ignore[arg-type]
    create_table(bench.database.alias, Ordered)
    bench.put_message("Test.Begin", {"number": 1})
    bench.run()
    assert calls.seen == [1]


def test_concurrent_starts_make_one_saga(bench: Bench, orders: OrderSagas) -> None:
    for number in range(40):
        orders.place(str(number % 4))
    bench.run(max_concurrency=8)
    assert [each.total for each in orders.rows()] == [10, 10, 10, 10]
    assert all(sorted(entry["what"] for entry in each.history) == ["continued"] * 9 + ["started"] for each in orders.rows())
    assert bench.rows("error") == []


def test_second_start_waits_for_the_first(bench: Bench) -> None:
    """Both messages find no row and insert one; the second waits for the commit of the first and continues its saga."""
    if bench.database.vendor == "sqlite":
        pytest.skip("SQLite has one writer")

    class Racing(NumberedSaga):
        count = models.IntegerField(default=0)

        @starts("Test.Begin")
        def begin(self, message: Any, context: Any) -> None:
            self.count += 1

    both = threading.Barrier(2, timeout=60)

    def meet(instance: Saga, **_: Any) -> None:
        if instance._state.adding:
            both.wait()

    models.signals.pre_save.connect(meet, sender=Racing)
    create_table(bench.database.alias, Racing)
    bench.configure(IMMEDIATE_RETRIES=0)
    for number in (1, 2):
        bench.put_message_of(number, "Test.Begin", {"number": 7})
    bench.run(max_concurrency=2, model="fixed")
    (saga,) = OrderSagas(bench).rows(Racing)
    assert (saga.count, len(saga.history)) == (2, 2)
    assert bench.rows("error") == []


def test_deadlock_between_batches_fails_no_message(bench: Bench, events: Any) -> None:
    """Each batch holds the saga that the other one needs next."""
    if bench.database.vendor == "sqlite":
        pytest.skip("SQLite has one writer")
    first_of_each = threading.Barrier(2, timeout=60)
    calls = Calls()

    class Crossing(NumberedSaga):
        count = models.IntegerField(default=0)

        @starts("Test.Begin")
        @continues("Test.Go")
        def go(self, message: Any, context: Any) -> None:
            self.count += 1
            if message.get("meets") and calls.add(self.number) <= 2:
                first_of_each.wait()

    create_table(bench.database.alias, Crossing)
    for number in (1, 2):
        bench.put_message_of(number, "Test.Begin", {"number": number})
    bench.run()
    for place, (number, meets) in enumerate([(1, True), (2, False), (2, True), (1, False)]):
        bench.put_message_of(place, "Test.Go", {"number": number, "meets": meets})
    bench.configure(IMMEDIATE_RETRIES=0, BATCH_SIZE=2)
    bench.run(max_concurrency=2, model="fixed")
    assert [saga.count for saga in OrderSagas(bench).rows(Crossing)] == [3, 3]
    assert bench.rows("error") == []
    assert "receive_gave_way" in events()


def test_messages_of_one_saga_lose_no_update(bench: Bench, calls: Calls) -> None:
    class Counting(NumberedSaga):
        count = models.IntegerField(default=0)

        @starts("Test.Begin")
        @continues("Test.Go")
        def go(self, message: Any, context: Any) -> None:
            self.count += 1

    create_table(bench.database.alias, Counting)
    bench.put_message("Test.Begin", {"number": 1})
    bench.run()
    for number in range(40):
        bench.put_message_of(number, "Test.Go", {"number": 1})
    bench.run(max_concurrency=8)
    (saga,) = OrderSagas(bench).rows(Counting)
    assert (saga.count, len(saga.history)) == (41, 41)


def test_coroutine_handles(bench: Bench, calls: Calls) -> None:
    class Waiting(NumberedSaga):
        done = models.BooleanField(default=False)

        @starts("Test.Begin", soft_time_limit=60)
        async def begin(self, message: Any, context: Any) -> None:
            await asend("Test.Out", {}, to=address(bench, "out"))
            self.done = True

    create_table(bench.database.alias, Waiting)
    bench.install_queues("out")
    bench.put_message("Test.Begin", {"number": 1})
    bench.run()
    sagas = OrderSagas(bench)
    assert sagas.rows(Waiting)[0].done
    (headers,) = bench.headers("out")
    assert headers["NServiceBus.OriginatingSagaId"] == str(sagas.rows(Waiting)[0].pk)


def test_completed_saga_can_be_deleted_at_once(bench: Bench) -> None:
    class Short(NumberedSaga):
        keep_completed = timedelta(0)

        @starts("Test.Begin")
        def begin(self, message: Any, context: Any) -> None:
            self.complete()

    create_table(bench.database.alias, Short)
    bench.put_message("Test.Begin", {"number": 1})
    bench.run()
    assert OrderSagas(bench).rows(Short) == []
    assert bench.rows("error") == []


def test_old_completed_sagas_are_deleted(bench: Bench, orders: OrderSagas) -> None:
    for order_id in ("41", "42", "43"):
        orders.place(order_id)
    bench.run()
    alias = bench.database.alias
    for order_id, days in (("41", 31), ("42", 29)):
        at = timezone.now() - timedelta(days=days)
        OrderSaga._base_manager.using(alias).filter(order_id=order_id).update(completed_at=at)
    delete_old_rows(alias, datetime.now(UTC))
    assert {each.order_id for each in orders.rows()} == {"42", "43"}


class Running(models.Manager[Any]):
    def get_queryset(self) -> models.QuerySet[Any]:
        return super().get_queryset().filter(completed_at=None)


def test_completed_saga_that_its_manager_hides_is_deleted(bench: Bench) -> None:
    class Hidden(NumberedSaga):
        objects = Running()

        @starts("Test.Begin")
        def begin(self, message: Any, context: Any) -> None:
            self.complete()

    create_table(bench.database.alias, Hidden)
    bench.put_message("Test.Begin", {"number": 1})
    bench.run()
    assert len(OrderSagas(bench).rows(Hidden)) == 1
    delete_old_rows(bench.database.alias, datetime.now(UTC) + timedelta(days=31))
    assert OrderSagas(bench).rows(Hidden) == []


def test_longest_time_keeps_completed_sagas(bench: Bench, orders: OrderSagas, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OrderSaga, "keep_completed", timedelta.max)
    orders.place("42")
    bench.run()
    OrderSaga._base_manager.using(bench.database.alias).update(completed_at=timezone.now())
    delete_old_rows(bench.database.alias, datetime.now(UTC))
    assert len(orders.rows()) == 1


def test_history_is_bounded(bench: Bench, orders: OrderSagas, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OrderSaga, "history_limit", 2)
    for total in (1, 2, 3):
        orders.place("42", total=total)
    bench.run(max_concurrency=1)
    assert [each["changed"] for each in orders.rows()[0].history] == [{"total": "3"}, {"total": "6"}]


def test_objects_and_base_types_correlate(bench: Bench, calls: Calls) -> None:
    @message_type("Test.Parent")
    @dataclass
    class Parent:
        number: int

    @message_type("Test.Child")
    @dataclass
    class Child(Parent):
        text: str = ""

    class Typed(NumberedSaga):
        @starts(Child)
        @continues(Parent)
        def begin(self, message: Any, context: Any) -> None:
            calls.add(type(message).__name__)

    try:
        create_table(bench.database.alias, Typed)
        bench.configure(routes={"Test.*": "Sales"})
        send(Child(5, "x"))
        bench.run()
        assert calls.seen == ["Child"], "one message must call the method once"
        send(Parent(5))
        bench.run()
        assert calls.seen == ["Child", "Parent"]
    finally:
        for name in ("Test.Parent", "Test.Child"):
            found = message_types._by_name.pop(name)
            message_types._by_class.pop(found.cls)


@pytest.mark.parametrize("by_name", [False, True])
def test_timeout_of_a_derived_type_arrives(bench: Bench, calls: Calls, by_name: bool) -> None:
    @message_type("Test.Reminder")
    @dataclass
    class Reminder:
        text: str

    @message_type("Test.LastReminder")
    @dataclass
    class LastReminder(Reminder): ...

    class Reminded(NumberedSaga):
        @starts("Test.Begin")
        def begin(self, message: Any, context: Any) -> None:
            if by_name:
                self.request_timeout(context, "Test.LastReminder", {"text": "x"}, delay=0)
            else:
                self.request_timeout(context, LastReminder("x"), delay=0)

        @on_timeout(Reminder)
        def remind(self, message: Any, context: Any) -> None:
            calls.add(message)

    try:
        create_table(bench.database.alias, Reminded)
        bench.put_message("Test.Begin", {"number": 1})
        bench.run()
        bench.run()
        assert calls.seen == [Reminder("x")]
    finally:
        for name in ("Test.Reminder", "Test.LastReminder"):
            found = message_types._by_name.pop(name)
            message_types._by_class.pop(found.cls)


def test_endpoint_does_not_subscribe_to_timeouts(bench: Bench, orders: OrderSagas) -> None:
    bench.configure(routes={"Test.PlaceOrder": "Sales"})
    bench.run()
    topics = {row.topic for row in sender_as("Sales").composer.subscribers.table.all()}
    assert {"Test.OrderPaid", "Test.OrderShipped"} <= topics
    assert "Test.OrderExpired" not in topics


def test_endpoint_does_not_subscribe_to_timeouts_of_a_generic_type(bench: Bench) -> None:
    class Waiting(NumberedSaga):
        @starts("Test.Begin")
        def begin(self, message: Any, context: Any) -> None: ...

        @on_timeout("Test.Late`1[[Test.Order, Test]]")
        def late(self, message: Any, context: Any) -> None: ...

    create_table(bench.database.alias, Waiting)
    bench.run()
    assert {row.topic for row in sender_as("Sales").composer.subscribers.table.all()} == {"Test.Begin"}


def test_mode_none_is_refused(bench: Bench, orders: OrderSagas) -> None:
    bench.configure(TRANSACTION_MODE="none")
    with pytest.raises(ConfigurationError, match="TRANSACTION_MODE is 'none'"):
        bench.run()


def test_other_database_is_refused(postgresql_bench: Bench) -> None:
    class Elsewhere(Saga):
        correlate_by = "number"
        number = models.IntegerField(unique=True)

        class Meta:
            app_label = "elsewhere"
            apps = Apps()

        @starts("Test.Begin")
        def begin(self, message: Any, context: Any) -> None: ...

    (found,) = [each for each in Elsewhere.check() if each.id == "sqlqueue.E053"]
    assert "'default'" in found.msg
    postgresql_bench.configure()
    with pytest.raises(ConfigurationError, match="cannot commit together"):
        postgresql_bench.run()


def test_checks_find_what_cannot_work(bench: Bench) -> None:
    class Wrong(Saga):
        correlate_by = "numbr"
        number = models.IntegerField(unique=True)

        class Meta:
            app_label = "sqlqueue_app"
            apps = Apps()

    class Twice(Saga):
        correlate_by = "number"
        number = models.IntegerField()
        other = models.IntegerField()
        text = models.TextField()
        maybe = models.DateField(null=True)

        class Meta:
            app_label = "sqlqueue_app"
            apps = Apps()

        @starts("Test.Begin")
        def begin(self, message: Any, context: Any) -> None: ...

    assert ids(Wrong) == ["sqlqueue.E050", "sqlqueue.W050"]
    assert ids(Twice) == ["sqlqueue.E051", "sqlqueue.E052"]
    assert "but other has no default" in "".join(each.msg for each in Twice.check())
    assert ids(OrderSaga) == []


@pytest.mark.parametrize("name", ["parent", "parent_id"])
def test_foreign_key_correlates_by_either_of_its_names(bench: Bench, calls: Calls, name: str) -> None:
    class Parent(NumberedSaga):
        class Meta:
            app_label = "sqlqueue_app"
            apps = REGISTRY

    class Child(Saga):
        correlate_by = name
        parent = models.OneToOneField(Parent, models.CASCADE)

        class Meta:
            app_label = "sqlqueue_app"
            apps = REGISTRY

        @starts("Test.Begin")
        def begin(self, message: Any, context: Any) -> None:
            calls.add(self.correlation)

    assert "sqlqueue.E052" not in ids(Child)
    create_table(bench.database.alias, Parent)
    create_table(bench.database.alias, Child)
    now = timezone.now()
    parent = Parent._base_manager.using(bench.database.alias).create(number=1, started_at=now, updated_at=now)
    bench.put_message("Test.Begin", {"parent_id": str(parent.pk)})
    bench.run()
    assert calls.seen == [parent.pk]


def test_wrong_options_are_reported(bench: Bench) -> None:
    class Days(NumberedSaga):
        keep_completed: ClassVar[Any] = 30
        history_limit = -1

        @starts("Test.Begin")
        def begin(self, message: Any, context: Any) -> None: ...

    assert [(each.id, each.msg) for each in Days.check()] == [
        ("sqlqueue.E054", "Days.keep_completed is 30: expected a timedelta of zero or more, or None"),
        ("sqlqueue.E054", "Days.history_limit is -1: expected a whole number of zero or more"),
    ]


def ids(saga: type[Saga]) -> list[str]:
    found: list[checks.CheckMessage] = saga.check()
    return [str(each.id) for each in found]


def test_unique_constraint_is_enough(bench: Bench) -> None:
    class Tenant(Saga):
        correlate_by = "number"
        number = models.IntegerField()

        class Meta:
            app_label = "sqlqueue_app"
            apps = Apps()
            constraints = [models.UniqueConstraint(fields=["number"], name="unique_number")]  # noqa: RUF012

        @starts("Test.Begin")
        def begin(self, message: Any, context: Any) -> None: ...

    assert ids(Tenant) == []


@pytest.mark.parametrize("decorate", [starts, continues, on_timeout])
def test_wrong_decorators_are_refused(decorate: Any) -> None:
    with pytest.raises(HandlerError, match="names no message type"):
        decorate()
    with pytest.raises(HandlerError, match="must take"):
        decorate("Test.Message")(lambda self: None)
    with pytest.raises(HandlerError, match="expected a Retry"):
        decorate("Test.Message", retry=3)
    with pytest.raises(HandlerError, match="a number of seconds above 0"):
        decorate("Test.Message", soft_time_limit=0)
    if decorate is not on_timeout:
        with pytest.raises(HandlerError, match="expected a function, as in correlate=lambda"):
            decorate("Test.Message", correlate=asend)

    def generator(self: Any, message: Any, context: Any) -> Any:
        yield 1

    with pytest.raises(HandlerError, match="generator"):
        decorate("Test.Message")(generator)


def test_one_method_that_names_a_message_twice_is_refused(bench: Bench) -> None:
    with pytest.raises(HandlerError, match=r"Double\.begin names 'Test\.Begin' twice: keep one; @starts also continues"):

        class Double(NumberedSaga):
            @starts("Test.Begin")
            @continues("Test.Begin")
            def begin(self, message: Any, context: Any) -> None: ...


def test_two_methods_for_one_message_are_refused(bench: Bench) -> None:
    with pytest.raises(HandlerError, match=r"two methods for 'Test\.Begin, Shop\.Messages', begin and go"):

        class Double(NumberedSaga):
            @starts("Test.Begin")
            def begin(self, message: Any, context: Any) -> None: ...

            @continues("Test.Begin, Shop.Messages")
            def go(self, message: Any, context: Any) -> None: ...


def test_timeout_without_a_method_or_a_time_is_refused(bench: Bench) -> None:
    saga = OrderSaga(order_id="42")
    with pytest.raises(MessageTypeError, match=r"no method with @on_timeout for it"):
        saga.request_timeout(object(), "Test.Never", delay=1)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="one of delay= and deliver_at="):
        saga.request_timeout(object(), "Test.OrderExpired")  # type: ignore[arg-type]
    with pytest.raises(MessageTypeError, match="has no originator"):
        saga.reply_to_originator(object(), "Test.Done")  # type: ignore[arg-type]


def test_names_are_public() -> None:
    assert sqlqueue_app.Saga is Saga
    assert issubclass(OrderSaga, Saga)


def test_plain_handler_of_the_same_message_is_called_too(bench: Bench, orders: OrderSagas, calls: Calls) -> None:
    handles("Test.OrderPaid")(lambda message, context: calls.add(message["order_id"]))
    orders.place("42")
    orders.pay("42")
    bench.run(max_concurrency=1)
    assert calls.seen == ["42"]
    assert orders.rows()[0].paid
