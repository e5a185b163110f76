"""Purging, removing, moving and saving: confirmed, done once, recorded, and refused without the permission."""

from __future__ import annotations

import base64
import json
from datetime import timedelta
from urllib.parse import quote

import pytest

from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import PermissionDenied
from sqlqueue_app.models import Instance, Operation, OperatorAction
from sqlqueue_app.status import instances
from sqlqueue_app.status.texts import path_of
from sqlqueue_app.tables.installation import drop_queue
from sqlqueue_app.tables.queue import Depth, QueueTable
from tests.support.databases import QueueDatabase
from tests.support.filling import count, install, instance, message, row, table
from tests.support.pages import OVERVIEW, Markup, client_of
from tests.support.tables import make_table

SALES = f"{OVERVIEW}Sales/"
CONFIRMED = {"confirmed": "1"}


@pytest.fixture
def filled(queue_database: QueueDatabase) -> QueueDatabase:
    install(queue_database)
    table(queue_database, "Sales").send([message(), message(), message(lifetime_ms=-1000)])
    return queue_database


def recorded() -> list[tuple[str, str, str, str, int]]:
    return [(each.user_name, each.action, each.target, each.result, each.count) for each in OperatorAction.objects.order_by("id")]


def test_purge_needs_the_typed_name_and_shows_the_number(filled: QueueDatabase) -> None:
    client = client_of("admin")
    page = client.get(f"{SALES}purge/").content.decode()
    assert "Messages 3" in Markup(page).text()
    assert Markup(page).inline == []
    assert client.post(f"{SALES}purge/").status_code == 200, "not confirmed"
    wrong = client.post(f"{SALES}purge/", {**CONFIRMED, "typed": "sales"})
    assert wrong.status_code == 400
    assert "Type “Sales” to confirm." in Markup(wrong.content.decode()).text()
    assert count(filled, "Sales") == 3

    done = client.post(f"{SALES}purge/", {**CONFIRMED, "typed": "Sales"}, follow=True)
    assert "3 messages deleted." in Markup(done.content.decode()).text()
    assert count(filled, "Sales") == 0
    assert recorded() == [("admin", "purge", "Sales", "done", 3)]


@pytest.mark.parametrize("page", ["purge", "purge-expired", "move"])
def test_page_of_an_action_on_a_missing_table_is_not_found(filled: QueueDatabase, page: str) -> None:
    drop_queue(filled.alias, table(filled, "Sales").address)
    answer = client_of("admin").get(f"{SALES}{page}/")
    assert (answer.status_code, recorded()) == (404, [])
    assert "Sales" in Markup(answer.content.decode()).text()


@pytest.mark.parametrize(("name", "typed"), [("two  spaces ", "two spaces"), (" line\nend", "lineend")])
def test_name_with_spaces_can_be_typed(sqlite_database: QueueDatabase, name: str, typed: str) -> None:
    install(sqlite_database)
    make_table(sqlite_database, name=name).send([message()])
    purge = f"{OVERVIEW}{quote(path_of(name))}/purge/"

    assert client_of("admin").post(purge, {**CONFIRMED, "typed": typed.replace("e", "", 1)}).status_code == 400
    assert client_of("admin").post(purge, {**CONFIRMED, "typed": typed}).status_code == 302
    assert table(sqlite_database, name).depth().waiting == 0


def test_only_expired_messages_are_purged(filled: QueueDatabase) -> None:
    answer = client_of("admin").post(f"{SALES}purge-expired/", CONFIRMED, follow=True)
    assert "1 message deleted." in Markup(answer.content.decode()).text()
    assert count(filled, "Sales") == 2
    assert recorded() == [("admin", "purge_expired", "Sales", "done", 1)]


@pytest.mark.parametrize("page", ["purge", "purge-expired", "remove", "move"])
@pytest.mark.parametrize("kind", ["viewer", "reader", "writer"])
def test_denied_user_is_refused_and_recorded(filled: QueueDatabase, kind: str, page: str) -> None:
    client = client_of(kind)
    assert client.get(f"{SALES}{page}/").status_code == 403
    assert recorded() == []
    assert client.post(f"{SALES}{page}/", {**CONFIRMED, "typed": "Sales"}).status_code == 403
    ((who, _action, target, result, number),) = recorded()
    assert (who, target, result, number) == (kind, "Sales", "denied", 0)
    assert count(filled, "Sales") == 3


def test_denied_actions_are_shown_with_the_reason(filled: QueueDatabase) -> None:
    markup = Markup(client_of("reader").get(SALES).content.decode())
    assert len([each for each in markup.find("button") if "disabled" in each]) == 6
    assert "You need the permission “Can purge queues, and remove callback queues”." in markup.text()
    assert not any("purge" in link for link in markup.links)


def test_callback_queue_of_a_dead_process_is_removed(filled: QueueDatabase) -> None:
    instance(name="there", host="there", callback_queue="Sales.there", silent=timedelta(minutes=5))
    install(filled, ENDPOINTS={"Sales": {"CALLBACKS": True, "INSTANCE": "there", "CALLBACK_QUEUES": 1}})
    install(filled)
    page = f"{OVERVIEW}Sales.there/remove/"
    answer = client_of("admin").post(page, {**CONFIRMED, "typed": "Sales.there"}, follow=True)
    assert "Queue Sales.there removed." in Markup(answer.content.decode()).text()
    assert not Instance.objects.filter(callback_queue="Sales.there").exists()
    assert not table(filled, "Sales.there").exists()


def test_queues_that_were_removed_are_recorded_when_another_cannot_be(
    filled: QueueDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["Sales.here", "Sales.here-2"]
    for number, name in enumerate(names):
        instance(name="here", pid=number, callback_queue=name, silent=timedelta(minutes=5))

    def refuse(alias: str, address: QueueAddress) -> bool:
        if address.table == names[0]:
            raise PermissionDenied("must be owner of the table")
        return drop_queue(alias, address)

    monkeypatch.setattr(instances, "drop_queue", refuse)
    answer = client_of("admin").post(f"{OVERVIEW}_gone/remove/", {**CONFIRMED, "queues": names}, follow=True)
    assert '<li class="warning">1 callback queue removed. Sales.here: must be owner of the table' in answer.content.decode()
    assert [table(filled, name).exists() for name in names] == [True, False]
    assert recorded() == [("admin", "remove_callback_queues", "Sales.here-2", "done", 1)]


def test_callback_queue_of_a_live_process_stays(filled: QueueDatabase) -> None:
    instance()
    page = f"{OVERVIEW}Sales.here/"
    assert "A live process has leased it." in Markup(client_of("admin").get(page).content.decode()).text()
    answer = client_of("admin").post(f"{page}remove/", {**CONFIRMED, "typed": "Sales.here"})
    assert answer.status_code == 409
    assert table(filled, "Sales.here").exists()


def test_all_messages_are_saved_with_their_bodies(filled: QueueDatabase) -> None:
    odd = row("not json", b"\x00\xff" * 70_000)
    table(filled, "Sales").send([odd])
    answer = client_of("writer").get(f"{SALES}save/")
    lines = [json.loads(line) for line in answer.getvalue().splitlines()]
    assert len(lines) == 4
    assert lines[3]["headers"] == "not json"
    assert base64.b64decode(lines[3]["body_base64"]) == b"\x00\xff" * 70_000
    assert client_of("reader").get(f"{SALES}save/").status_code == 403


@pytest.mark.parametrize("page", ["purge", "purge-expired", "remove", "save"])
def test_unknown_queue_returns_404(filled: QueueDatabase, page: str) -> None:
    assert client_of("admin").get(f"{OVERVIEW}nothing/{page}/").status_code == 404


# --- moving all messages -------------------------------------------------------------------------------------------------------


def test_operation_moves_all_messages(filled: QueueDatabase) -> None:
    client = client_of("admin")
    page = client.get(f"{SALES}move/").content.decode()
    assert "Messages 3" in Markup(page).text()
    assert Markup(page).inline == []

    done = client.post(f"{SALES}move/", {**CONFIRMED, "to": "Sales.Priority"}, follow=True)

    assert "3 messages moved." in Markup(done.content.decode()).text()
    assert (count(filled, "Sales"), count(filled, "Sales.Priority")) == (0, 3)
    assert recorded() == [("admin", "move_queue", "Sales → Sales.Priority", "done", 3)]
    operation = Operation.objects.get()
    assert (operation.kind, operation.state, operation.user_name) == ("move_queue", "completed", "admin")


@pytest.mark.parametrize(
    ("to", "status", "text"),
    [
        ("", 400, "This field is required."),
        ("Nowhere", 409, "there is no queue 'Nowhere'"),
        ("Sales", 409, "The messages are already in “Sales”: choose another queue."),
        ("a" * 300, 409, ""),
        ("[", 409, ""),
        ("\u202e'\"", 409, ""),
        ("\x00", 400, "Null characters are not allowed."),
    ],
)
def test_invalid_target_queue_is_refused_with_the_reason(filled: QueueDatabase, to: str, status: int, text: str) -> None:
    answer = client_of("admin").post(f"{SALES}move/", {**CONFIRMED, "to": to})
    assert answer.status_code == status
    assert text in Markup(answer.content.decode()).text()
    assert count(filled, "Sales") == 3


def test_operation_purges_a_long_queue(filled: QueueDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QueueTable, "depth", lambda *_arguments: Depth(3, 1, 1, exact=False))
    answer = client_of("admin").post(f"{SALES}purge/", {**CONFIRMED, "typed": "Sales"}, follow=True)
    assert "3 messages deleted." in Markup(answer.content.decode()).text()
    assert count(filled, "Sales") == 0
    assert Operation.objects.get().kind == "purge_queue"
