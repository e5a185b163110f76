"""Two operators retry everything repeatedly while the index follows and an endpoint fails each message once more.

Each message is handled exactly as often as it was sent, and each failure is resolved.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections import Counter
from collections.abc import Callable

from django.db import connections

from sqlqueue_app.conf import get_settings
from sqlqueue_app.failures.index import catch_up
from sqlqueue_app.failures.operation_batches import OperationRefused
from sqlqueue_app.failures.operations import OperationRunner, create_operation
from sqlqueue_app.failures.selection import FailureSelection
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.errors import TransientError
from sqlqueue_app.models import FailedMessage, FailureStatus, Operation, managed_alias
from sqlqueue_app.status.events import Actor
from sqlqueue_app.tables.connections import database_now
from sqlqueue_app.tables.receive_transaction import receive_transaction
from sqlqueue_app.tables.rows import NewRow
from tests.support.databases import QueueDatabase
from tests.support.failing import fail, failed_headers, failed_row, install_sales
from tests.support.filling import count, table
from tests.support.waiting import join_all, poll_until

MESSAGES = 120
TIMES = 2


class Play:
    """The work of the threads, each in a loop until the stop."""

    def __init__(self, shop: QueueDatabase) -> None:
        self.shop = shop
        self.stop = threading.Event()
        self.errors: list[BaseException] = []
        self.handled: Counter[str] = Counter()

    def looping(self, step: Callable[[], bool]) -> threading.Thread:
        """A thread that repeats the step and waits briefly after one that found nothing to do."""

        def run() -> None:
            try:
                while not self.stop.is_set():
                    try:
                        if not step():
                            self.stop.wait(0.01)
                    except TransientError:
                        continue  # as a worker does
            except BaseException as error:  # noqa: BLE001 - handed to the test's own thread
                self.errors.append(error)
            finally:
                connections.close_all()

        return threading.Thread(target=run, name=step.__name__)

    def operator(self) -> bool:
        runner = OperationRunner(get_settings(), batch=25)
        try:
            operation = create_operation(get_settings(), "retry", FailureSelection(), actor=Actor("anna"), runner=runner)
        except OperationRefused:
            return False
        while runner.run(operation.pk, wait=lambda _: False) is None:
            pass
        return True

    def index(self) -> bool:
        return catch_up(get_settings(), limit=500, now=database_now(managed_alias())).read > 0

    def endpoint(self) -> bool:
        receiving = receive_transaction(table(self.shop, "Sales"))
        row = receiving.receive()
        if row is None:
            return False
        headers = json.loads(row.headers or "")
        message_id = headers[names.MESSAGE_ID]
        self.handled[message_id] += 1
        if self.handled[message_id] < TIMES:
            answer = failed_headers(headers)
        else:
            unique = headers[names.RETRY_UNIQUE_MESSAGE_ID]
            answer = {names.RETRY_SUCCESSFUL: "x", names.RETRY_UNIQUE_MESSAGE_ID: unique, names.CONTROL_MESSAGE: "True"}
        table(self.shop, "error").send([NewRow(str(uuid.uuid4()), json.dumps(answer), row.body or b"")])
        receiving.commit()
        return True


def test_concurrent_operators_send_each_message_once_per_failure(queue_database: QueueDatabase) -> None:
    install_sales(queue_database)
    failures = fail(queue_database, [failed_row() for _ in range(MESSAGES)])
    play = Play(queue_database)
    threads = [play.looping(step) for step in (play.operator, play.operator, play.index, play.index, play.endpoint)]
    resolved = FailedMessage.objects.filter(status=FailureStatus.RESOLVED)
    for thread in threads:
        thread.start()
    try:
        poll_until(lambda: play.errors or resolved.count() == MESSAGES, 120.0, what="all failures are resolved")
    finally:
        play.stop.set()
        join_all(threads)

    assert play.errors == []
    assert play.handled == {each.message_id: TIMES for each in failures}
    assert (count(queue_database, "Sales"), count(queue_database, "error")) == (0, 0)
    assert list(FailedMessage.objects.values_list("attempts", flat=True)) == [TIMES] * MESSAGES
    operations = list(Operation.objects.all())
    assert sum(each.done for each in operations) == TIMES * MESSAGES
    assert {each.failed for each in operations} == {0}
