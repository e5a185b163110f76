"""Claim checks: large bodies are files of a storage from before the row is written until its message is finished."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from pytest_django import Settings

from sqlqueue_app import handles, publish, send, send_many, subscribe
from sqlqueue_app.browsing.bodies import BodyKind
from sqlqueue_app.browsing.messages import move_message, read_body, read_message
from sqlqueue_app.browsing.orphaned_bodies import OrphanedBodies, orphaned_bodies_of
from sqlqueue_app.conf import Settings as ProjectSettings, get_settings
from sqlqueue_app.failures.index import catch_up
from sqlqueue_app.failures.operation_batches import describe_reason
from sqlqueue_app.failures.operation_kinds import queue_scope
from sqlqueue_app.failures.operations import request_operation
from sqlqueue_app.failures.retrying import create_redirect
from sqlqueue_app.failures.selection import FailureSelection
from sqlqueue_app.messages.envelope import IncomingMessage
from sqlqueue_app.messages.errors import ConfigurationError, MessageBodyError, Unrecoverable
from sqlqueue_app.messages.headers import read_headers
from sqlqueue_app.models import FailedMessage, Operation
from sqlqueue_app.receiving.endpoint import ReceivingEndpoint
from sqlqueue_app.receiving.keys import KeyedHandlerTable
from sqlqueue_app.status.events import Actor
from sqlqueue_app.status.queues import address_book_of
from sqlqueue_app.tables.queue import QueueTable, queue_table
from sqlqueue_app.testing import drain, failed
from tests.support import counted_app, forking
from tests.support.bench import FAST, MODES, Bench, Calls
from tests.support.counted_app import NEXT
from tests.support.delayed_rows import delayed
from tests.support.forking import ForkedProcesses
from tests.support.worker_processes import wait_until_released

SMALL, LARGE = {"text": "x" * 50}, {"text": "y" * 500}


class Files:
    """The storage of the bodies: a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def names(self) -> list[str]:
        return sorted(file.relative_to(self.folder).as_posix() for file in self.folder.rglob("*") if file.is_file())

    def make(self, day: str, number: int = 0) -> str:
        """A file of a message of that day."""
        name = f"sqlqueue-bodies/{day}/00000000-0000-0000-0000-{number:012}"
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_bytes(b'{"text": "made"}')
        return name

    def lose(self) -> None:
        for name in self.names:
            (self.folder / name).unlink()


@pytest.fixture
def files(bench: Bench, settings: Settings, tmp_path: Path) -> Files:
    backend = "django.core.files.storage.FileSystemStorage"
    settings.STORAGES = {**settings.STORAGES, "bodies": {"BACKEND": backend, "OPTIONS": {"location": str(tmp_path)}}}
    configure(bench)
    return Files(tmp_path)


def configure(bench: Bench, *, claim_check: dict[str, Any] | None = None, limit: int = 400, **endpoint: Any) -> None:
    bench.database.configure(
        ENDPOINTS={"Sales": {**FAST, **endpoint}},
        ROUTES={"Test.*": "Sales", "Other.*": "Other"},
        CLAIM_CHECK={"STORAGE": "bodies", "ABOVE": 100, **(claim_check or {})},
        MAX_BODY_SIZE=limit,
    )
    bench.install()
    bench.install_queues("Other")


@pytest.fixture
def texts(calls: Calls) -> Calls:
    handles("Test.Message")(lambda message, context: calls.add(message["text"]))
    return calls


def test_large_body_is_a_file_and_small_one_is_not(bench: Bench, files: Files) -> None:
    send("Test.Message", SMALL)
    assert files.names == []
    send("Test.Message", LARGE)
    (name,) = files.names
    first, second = bench.rows("Sales")
    assert json.loads(first.body or b"") == SMALL
    assert not second.body
    assert json.loads(second.headers or "")["SqlQueue.ClaimCheck"] == name
    assert json.loads((files.folder / name).read_bytes()) == LARGE


def test_failed_message_is_listed_with_the_body_of_its_file(bench: Bench, files: Files, texts: Calls) -> None:
    handles("Test.Lost")(lambda message, context: message["missing"])
    send("Test.Lost", LARGE)
    drain(raise_errors=False, with_delayed=True)
    assert [message.body for message in failed()] == [LARGE]
    files.lose()
    assert [message.raw for message in failed()] == [b""]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("batch_size", [1, 5])
def test_body_is_read_for_the_handler_and_removed_after_it(
    bench: Bench, files: Files, texts: Calls, mode: str, batch_size: int
) -> None:
    configure(bench, TRANSACTION_MODE=mode, BATCH_SIZE=batch_size)
    send("Test.Message", LARGE)
    send_many("Test.Message", [SMALL, LARGE, LARGE])
    send("Test.Message", LARGE, delay=0.001)
    assert len(files.names) == 4
    bench.run(max_concurrency=1)
    assert sorted(texts.seen) == sorted([LARGE["text"]] * 4 + [SMALL["text"]])
    assert files.names == []


def test_key_of_a_message_is_read_from_its_file(bench: Bench, files: Files) -> None:
    handles("Test.Message", key=lambda message: message["text"])(lambda message, context: None)
    configure(bench)
    send("Test.Message", LARGE)
    endpoint = ReceivingEndpoint(get_settings(), "Sales")
    assert isinstance(endpoint.handlers, KeyedHandlerTable)
    (row,) = bench.rows("Sales")
    incoming = IncomingMessage(row.id, read_headers(row.headers), b"")
    claim_checks = endpoint.callback_composer("Sales").claim_checks
    assert endpoint.handlers.key_of(incoming, claim_checks) == LARGE["text"].encode()
    files.lose()
    assert endpoint.handlers.key_of(incoming, claim_checks) is None
    bench.run()
    assert len(bench.rows("error")) == 1


def test_messages_of_a_handler_have_their_own_files(bench: Bench, files: Files, calls: Calls) -> None:
    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add(message["text"])
        context.send_local("Test.Second", LARGE)
        send("Test.Second", LARGE)
        if len(calls.seen) == 1:
            context.forward("Sales")

    handles("Test.Second")(lambda message, context: calls.add("second"))
    send("Test.Message", LARGE)
    bench.run(max_concurrency=1)
    assert sorted(calls.seen) == ["second"] * 4 + [LARGE["text"]] * 2
    assert files.names == []


def test_each_subscriber_has_a_file(bench: Bench, files: Files, calls: Calls) -> None:
    bench.database.configure(
        ENDPOINTS={"Sales": FAST, "Shop": FAST}, CLAIM_CHECK={"STORAGE": "bodies", "ABOVE": 100}, SEND_AS="Sales"
    )
    bench.install()
    handles("Test.Happened")(lambda message, context: calls.add((context.endpoint, message["text"])))
    for endpoint in ("Sales", "Shop"):
        subscribe("Test.Happened", endpoint=endpoint)
    publish("Test.Happened", LARGE)
    assert len(files.names) == 2
    bench.run()
    assert sorted(calls.seen) == [("Sales", LARGE["text"]), ("Shop", LARGE["text"])]
    assert files.names == []


# --- failures -----------------------------------------------------------------------------------------------------------------


def test_file_stays_while_the_message_is_retried_and_fails(bench: Bench, files: Files, failing: Calls) -> None:
    configure(bench, IMMEDIATE_RETRIES=1, DELAYED_RETRIES=1, DELAYED_RETRY_INCREASE=0)
    send("Test.Message", LARGE)
    bench.run()
    assert len(failing.seen) == 4
    (name,) = files.names
    assert [headers["SqlQueue.ClaimCheck"] for headers in bench.headers("error")] == [name]


def test_rolled_back_handler_leaves_the_file(bench: Bench, files: Files, calls: Calls) -> None:
    configure(bench, IMMEDIATE_RETRIES=1)

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        assert len(files.names) == 1
        if calls.add(message["text"]) == 1:
            raise ValueError("not yet")

    send("Test.Message", LARGE)
    bench.run()
    assert calls.seen == [LARGE["text"]] * 2
    assert files.names == []


def test_missing_file_fails_the_message_whole(bench: Bench, files: Files, texts: Calls) -> None:
    send("Test.Message", LARGE)
    (name,) = files.names
    files.lose()
    bench.run()
    (headers,) = bench.headers("error")
    assert headers["SqlQueue.ClaimCheck"] == name
    assert "BodyNotFound" in headers["NServiceBus.ExceptionInfo.ExceptionType"]
    assert name in headers["NServiceBus.ExceptionInfo.Message"]
    assert texts.seen == []


def test_receiver_without_the_setting_keeps_the_message(bench: Bench, files: Files, texts: Calls) -> None:
    send("Test.Message", LARGE)
    bench.database.configure(ENDPOINTS={"Sales": FAST}, CLAIM_CHECK=None)
    bench.run()
    (headers,) = bench.headers("error")
    assert "CLAIM_CHECK" in headers["NServiceBus.ExceptionInfo.Message"]
    assert len(files.names) == 1
    assert texts.seen == []


@pytest.mark.parametrize("name", ["secret.txt", "../secret.txt", "sqlqueue-bodies/2026-01-01/../../secret.txt"])
def test_header_of_a_stranger_names_no_other_file(bench: Bench, files: Files, texts: Calls, name: str) -> None:
    (files.folder / "secret.txt").write_bytes(b'{"text": "secret"}')
    headers = {"NServiceBus.EnclosedMessageTypes": "Test.Message", "SqlQueue.ClaimCheck": name}
    bench.put(json.dumps(headers), b"")
    bench.run()
    assert len(bench.rows("error")) == 1
    assert texts.seen == []
    assert files.names == ["secret.txt"]


def test_discarded_message_loses_its_file(bench: Bench, files: Files) -> None:
    configure(bench, TRANSACTION_MODE="none", ON_FAILURE_WITHOUT_TRANSACTION="discard")

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        raise Unrecoverable("no")

    send("Test.Message", LARGE)
    bench.run()
    assert files.names == []
    assert bench.rows("error") == []


def test_second_copy_of_a_handled_message_needs_no_file(bench: Bench, files: Files, texts: Calls) -> None:
    configure(bench, DEDUPLICATE_FOR=3600)
    send("Test.Message", LARGE)
    (row,) = bench.rows("Sales")
    bench.run()
    bench.put(row.headers or "", b"")
    bench.run()
    assert texts.seen == [LARGE["text"]]
    assert bench.rows("error") == bench.rows("Sales") == []


def test_body_in_the_row_wins(bench: Bench, files: Files, failing: Calls) -> None:
    """A failed message was edited: it keeps the header, and has its new body in the row."""
    configure(bench, DELAYED_RETRIES=1, DELAYED_RETRY_INCREASE=0)
    name = files.make("2026-01-01")
    bench.put_message("Test.Message", LARGE, **{"SqlQueue.ClaimCheck": name})
    bench.run()
    (row,) = bench.rows("error")
    assert json.loads(row.body or b"") == LARGE
    assert files.names == [name]


# --- limits -------------------------------------------------------------------------------------------------------------------


def test_queue_that_may_not_read_files_gets_the_body(bench: Bench, files: Files) -> None:
    configure(bench, limit=1_000)
    send("Other.Message", LARGE)
    assert json.loads(bench.rows("Other")[0].body or b"") == LARGE
    configure(bench, claim_check={"ENDPOINTS": ["Other"]})
    send("Other.Message", LARGE)
    assert not bench.rows("Other")[1].body


def table_of_queue(name: str) -> QueueTable:
    settings = get_settings()
    return queue_table(settings.database, address_book_of(settings).of_queue(name))


def move_one(settings: ProjectSettings) -> None:
    table = table_of_queue("Sales")
    move_message(settings, table, table.row_versions(1)[0], "Other")


def move_all(settings: ProjectSettings) -> None:
    scope = queue_scope(table_of_queue("Sales"), "Sales", table_of_queue("Other"))
    request_operation(settings, "move_queue", scope, actor=Actor("anna"))


def retry(settings: ProjectSettings) -> None:
    drain(raise_errors=False, with_delayed=True)
    catch_up(settings, limit=1_000, now=datetime.now(UTC))
    chosen = FailureSelection(ids=(FailedMessage.objects.get().pk,))
    request_operation(settings, "retry", chosen, actor=Actor("anna"))


def retry_through_a_redirect(settings: ProjectSettings) -> None:
    create_redirect(settings, "Sales", "Other")
    retry(settings)


def redirect_the_retry(settings: ProjectSettings) -> None:
    retry(settings)
    create_redirect(settings, "Sales", "Other")
    chosen = FailureSelection(ids=(FailedMessage.objects.get().pk,))
    request_operation(settings, "redirect", chosen, actor=Actor("anna"))


@pytest.mark.parametrize("way", [move_one, move_all, retry_through_a_redirect, redirect_the_retry])
def test_operator_moves_the_body_to_a_queue_that_may_not_read_files(
    bench: Bench, files: Files, failing: Calls, way: Callable[[ProjectSettings], None]
) -> None:
    send("Test.Message", LARGE)
    way(get_settings())
    (row,) = bench.rows("Other")
    assert json.loads(row.body or b"") == LARGE
    assert "SqlQueue.ClaimCheck" not in (row.headers or "")


@pytest.mark.parametrize("way", [move_one, move_all, retry_through_a_redirect, redirect_the_retry])
def test_operator_leaves_the_file_to_a_queue_that_reads_it(
    bench: Bench, files: Files, failing: Calls, way: Callable[[ProjectSettings], None]
) -> None:
    configure(bench, claim_check={"ENDPOINTS": ["Other"]})
    send("Test.Message", LARGE)
    way(get_settings())
    (row,) = bench.rows("Other")
    assert not row.body
    assert [json.loads(row.headers or "")["SqlQueue.ClaimCheck"]] == files.names


def test_message_without_its_file_is_not_moved(bench: Bench, files: Files) -> None:
    send("Test.Message", LARGE)
    (name,) = files.names
    files.lose()
    move_all(get_settings())
    assert (len(bench.rows("Sales")), bench.rows("Other")) == (1, [])
    (entry,) = Operation.objects.get().log
    assert describe_reason(entry["reason"], entry["detail"]).startswith(f"Error: the body of the message is the file '{name}'")


def test_headers_of_another_message_do_not_keep_the_body_in_the_row(bench: Bench, files: Files, texts: Calls) -> None:
    """A handler may pass on all headers that do not belong to NServiceBus."""
    other = files.make("2026-01-01")
    send("Test.Message", LARGE, headers={"SqlQueue.ClaimCheck": other, "Shop.Note": 'see "SqlQueue.ClaimCheck":'})
    (row,) = bench.rows("Sales")
    assert not row.body
    assert json.loads(row.headers or "")["Shop.Note"] == 'see "SqlQueue.ClaimCheck":'
    bench.run()
    assert texts.seen == [LARGE["text"]]
    assert files.names == [other]


def test_limit_of_bodies_is_that_of_rows(bench: Bench, files: Files) -> None:
    with pytest.raises(MessageBodyError, match=r"more than the 400 of .*'Other' is not known to read claim checks"):
        send("Other.Message", LARGE)
    with pytest.raises(MessageBodyError, match=r"bodies\[1\]: .*claim checks"):
        send_many("Other.Message", [SMALL, LARGE])
    send("Test.Message", LARGE)
    assert len(files.names) == 1


def test_unknown_storage_is_refused(bench: Bench, files: Files) -> None:
    configure(bench, claim_check={"STORAGE": "bodys"})
    with pytest.raises(ConfigurationError, match=r"STORAGE.*'bodys', expected an alias of STORAGES"):
        send("Test.Message", LARGE)


def test_audit_copy_has_the_name_and_no_body(bench: Bench, files: Files, texts: Calls) -> None:
    configure(bench, AUDIT_QUEUE="audit")
    send("Test.Message", LARGE)
    bench.run()
    (row,) = bench.rows("audit")
    assert not row.body
    assert "SqlQueue.ClaimCheck" in (row.headers or "")
    assert files.names == []


def test_drain_reads_the_body(bench: Bench, files: Files, texts: Calls) -> None:
    send("Test.Message", LARGE)
    drain()
    assert texts.seen == [LARGE["text"]]
    assert files.names == []


def test_pages_show_the_body(bench: Bench, files: Files) -> None:
    send("Test.Message", LARGE)
    table, (row,) = bench.table("Sales"), bench.rows("Sales")
    shown = read_message(table, row.row_version)
    assert shown is not None
    assert json.loads(shown.body.text) == LARGE
    assert json.loads(read_body(table, row.row_version) or b"") == LARGE
    files.lose()
    shown = read_message(table, row.row_version)
    assert shown is not None
    assert shown.body.kind is BodyKind.EMPTY


# --- clean-up -----------------------------------------------------------------------------------------------------------------


def clean_up(bench: Bench, days: float) -> OrphanedBodies:
    found = orphaned_bodies_of(get_settings())
    assert found is not None
    found._now = lambda: datetime.now(UTC) + timedelta(days=days)
    return found


def test_rolled_back_transaction_leaves_a_file_for_the_clean_up(bench: Bench, files: Files) -> None:
    with transaction.atomic(using=bench.database.alias):
        send("Test.Message", LARGE)
        transaction.set_rollback(True, using=bench.database.alias)
    assert bench.rows("Sales") == []
    young = clean_up(bench, days=1)
    assert (young.run(), young.run()) == (0, 0), "its transaction may still be open"
    old = clean_up(bench, days=3)
    assert (old.run(), old.run()) == (0, 1), "a message may move while the tables are read: two runs must not find it"
    assert files.names == []


def test_clean_up_keeps_what_any_row_names(bench: Bench, files: Files, failing: Calls) -> None:
    send("Test.Message", LARGE)
    bench.run()
    send("Test.Message", LARGE)
    send("Test.Message", LARGE, delay=3600)
    kept = files.names
    assert len(kept) == 3, "one failed, one waits, one is delayed"
    files.make("2026-01-01")
    job = clean_up(bench, days=30)
    assert (job.run(), job.run()) == (0, 1)
    assert files.names == kept


def test_clean_up_keeps_everything_if_it_cannot_read_all_rows(
    bench: Bench, files: Files, monkeypatch: pytest.MonkeyPatch, events: Callable[[], list[str]]
) -> None:
    monkeypatch.setattr("sqlqueue_app.browsing.orphaned_bodies.SEARCHED_ROWS", 2)
    send_many("Test.Message", [SMALL] * 5)
    name = files.make("2026-01-01")
    job = clean_up(bench, days=0)
    assert (job.run(), job.run()) == (0, 0)
    assert files.names == [name]
    assert "bodies_not_searched" in events()


def test_clean_up_leaves_other_files_alone(bench: Bench, files: Files) -> None:
    (files.folder / "sqlqueue-bodies" / "notes").mkdir(parents=True)
    (files.folder / "sqlqueue-bodies" / "notes" / "a.txt").write_bytes(b"")
    job = clean_up(bench, days=30)
    assert (job.run(), job.run()) == (0, 0)
    assert files.names == ["sqlqueue-bodies/notes/a.txt"]


# --- kills --------------------------------------------------------------------------------------------------------------------

FAILS: dict[str, Any] = {**LARGE, "fails": True}
SENDS: dict[str, Any] = {**LARGE, "sends": True}
RETRY = {"DELAYED_RETRIES": 1, "DELAYED_RETRY_INCREASE": 0}
OF_WORKERS = (*counted_app.COMMITS, "file read", "before the file is deleted", "after the file is deleted")
OF_RETRIES = ("handler failed", "rows written", "file written")
OF_SENDERS = ("file written", "rows written")


def prepare_kills(bench: Bench, **endpoint: Any) -> None:
    configure(bench, HANDLERS=[counted_app.MODULE], **endpoint)
    bench.database.configure(ROUTES={"Counted.*": "Sales"})
    counted_app.create_table(bench)


def send_numbered(bench: Bench, numbers: range, *kinds: dict[str, Any]) -> None:
    """Send messages with these numbers, which have the given kinds in turn."""
    alias = bench.database.alias
    with transaction.atomic(using=alias):
        for number in numbers:
            send(counted_app.TYPE, {"alias": alias, "number": number, **kinds[number % len(kinds)]})


def named_files(bench: Bench) -> set[str]:
    """The files that rows name: in the queue, the error queue and the table of delayed messages."""
    texts = [row.headers for row in [*bench.rows("Sales"), *bench.rows("error")]]
    texts += [row.headers for row in delayed(bench.database).peek(1000)]
    return {json.loads(text or "")["SqlQueue.ClaimCheck"] for text in texts}


def check_kills(bench: Bench, files: Files, forked: ForkedProcesses) -> list[int]:
    """Check that each row has its file, clean up what the kills left, and handle the rest. Returns the handled numbers."""
    wait_until_released(bench)
    named = named_files(bench)
    assert named <= set(files.names)
    old = clean_up(bench, days=3)
    old.run(), old.run()
    assert set(files.names) == named, "the clean-up deletes exactly the files that no row names"
    assert forked.run(forking.RECEIVE, {"until_empty": True}) == 0
    assert files.names == []
    assert bench.rows("Sales") == bench.rows("error") == []
    assert delayed(bench.database).peek(10) == []
    handled = counted_app.counted(bench)
    assert len(handled) == len(set(handled)), "a message was handled twice"
    committed = {int(line.split()[1]) for line in forked.printed if line.startswith("sent")}
    assert committed <= set(handled), "a message was lost"
    return handled


@pytest.mark.parametrize(("mode", "batch_size"), [("transaction_scope", 1), ("transaction_scope", 5), ("none", 1)])
def test_kill_at_each_point_leaves_no_message_without_its_file(bench: Bench, files: Files, mode: str, batch_size: int) -> None:
    chosen = random.Random()
    loses = mode == "none"
    prepare_kills(bench, TRANSACTION_MODE=mode, **({} if loses else RETRY))
    numbers = range(200)
    send_numbered(bench, numbers, *([LARGE] if loses else [FAILS, SENDS]))
    with ForkedProcesses(bench) as forked:
        for point in (*OF_WORKERS, *(() if loses else OF_RETRIES)):
            options = {"batch_size": batch_size, "max_concurrency": 2}
            assert forked.run(counted_app.RECEIVE_UNTIL, point, chosen.randint(1, 3), options) == -signal.SIGKILL
            wait_until_released(bench)
            assert named_files(bench) <= set(files.names), point
        left = len(set(files.names) - named_files(bench))
        for first, point in enumerate(OF_SENDERS, 1):
            arguments = bench.database.alias, first * 1000, 10, LARGE
            assert forked.run(counted_app.SEND_UNTIL, point, chosen.randint(1, 3), *arguments) == -signal.SIGKILL
        assert len(set(files.names) - named_files(bench)) == left + len(OF_SENDERS)
        handled = check_kills(bench, files, forked)
    assert left, "a worker died between its commit and the deletion"
    own = {number for number in handled if number in numbers}
    if loses:
        # Two threads, each with one message that it has received.
        assert len(own) >= len(numbers) - 2 * len(OF_WORKERS)
    else:
        assert own == set(numbers)
        assert {number - NEXT for number in handled if number >= NEXT} == set(numbers[1::2])


ROUNDS, WORKERS, MESSAGES = 15, 3, 8


def test_kills_at_random_leave_no_message_without_its_file(bench: Bench, files: Files) -> None:
    """Each round kills a worker and a sender."""
    chosen = random.Random()
    prepare_kills(bench, **RETRY)
    with ForkedProcesses(bench) as forked:
        for _ in range(WORKERS):
            forked.begin(forking.RECEIVE, {"max_concurrency": 3})
        for first in range(0, ROUNDS * MESSAGES, MESSAGES):
            sender = forked.begin(counted_app.SEND, bench.database.alias, 1000 + first, MESSAGES, SENDS)
            send_numbered(bench, range(first, first + MESSAGES), FAILS, SENDS)
            for _ in range(chosen.randint(1, MESSAGES)):
                forked.read()
            forked.kill(sender)
            forked.kill(chosen.choice(forked.alive))
            forked.begin(forking.RECEIVE, {"max_concurrency": 3})
        forked.kill_all()
        handled = check_kills(bench, files, forked)
    assert {number for number in handled if number < 1000} == set(range(ROUNDS * MESSAGES))
    sending = {number for number in handled if number < NEXT and (number % 2 or number >= 1000)}
    assert {number - NEXT for number in handled if number >= NEXT} == sending
