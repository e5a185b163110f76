"""Routes to missing queues, handlers without a message type, a missing app: each is reported with its cause."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core import checks
from django.core.management import CommandError, call_command
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from sqlqueue_app import Retry, handles, send, send_many
from sqlqueue_app.checks import (
    TAG,
    check_routed_queues,
    check_routes,
    check_shared_handlers,
    check_types_of_handlers,
    check_worker_imports,
    register,
)
from sqlqueue_app.conf import TASK_MESSAGE
from sqlqueue_app.conf.task_backends import TASK_BACKEND
from sqlqueue_app.messages.errors import HandlerError, MessageTypeError, QueueNotFound
from sqlqueue_app.receiving.handlers import registry
from tests.support.databases import QueueDatabase

MISSPELLED = {"ENDPOINTS": {"Sales": {}}, "ROUTES": {"Shop.*": "Sales", "Shop.Refund": "Salse", "Peer.*": "Warehouse"}}


def found(alias: str | None = None) -> list[tuple[str | None, str]]:
    """The results of the route check without a database, or of the one for the given database."""
    return [(each.id, each.msg) for each in (check_routed_queues([alias]) if alias else check_routes())]


def test_a_check_without_a_database_names_near_misses() -> None:
    # pytest-django fails a test that uses a database without asking for one.
    with override_settings(SQLQUEUE=MISSPELLED):
        assert found() == [
            (
                "sqlqueue.W007",
                "SQLQUEUE[\"ROUTES\"][\"Shop.Refund\"] is 'Salse', which is not an endpoint in the settings: did you mean 'Sales'?",
            )
        ]


@pytest.mark.parametrize("databases", [None, [], ["other"]])
def test_unnamed_database_is_not_opened(databases: list[str] | None) -> None:
    """Django 6.1 passes all databases to each check if none is named."""
    register()
    with override_settings(SQLQUEUE=MISSPELLED):
        found = [each.id for each in checks.run_checks(tags=[TAG], databases=databases)]
    assert [each for each in found if each in ("sqlqueue.W007", "sqlqueue.W038")] == ["sqlqueue.W007"]


def test_database_check_names_each_missing_queue(queue_database: QueueDatabase) -> None:
    queue_database.configure(**MISSPELLED)

    assert found(queue_database.alias) == [
        (
            "sqlqueue.W038",
            'SQLQUEUE["ROUTES"]["Peer.*"] is \'Warehouse\', which is neither an endpoint in the settings nor a queue in the '
            "database",
        )
    ]
    assert check_routed_queues(["other"]) == []


def test_check_reports_each_route_once(queue_database: QueueDatabase) -> None:
    register()
    queue_database.configure(**MISSPELLED)

    reported = [str(each.id) for each in checks.run_checks(databases=[queue_database.alias])]

    routes = ["sqlqueue.W007", "sqlqueue.W038"]
    assert sorted(each for each in reported if each in routes) == routes


def test_queue_of_a_peer_is_accepted_and_suggested(queue_database: QueueDatabase) -> None:
    install(queue_database, "Warehouse")
    routes = {"Peer.*": "Warehouse", "Stock.*": "Warehose", "Fire.*": "WAREHOUSE"}
    queue_database.configure(**{**MISSPELLED, "ROUTES": routes})

    messages = [message for _, message in found(queue_database.alias)]

    # Only on PostgreSQL can names differ only in case.
    assert len(messages) == (2 if queue_database.vendor == "postgresql" else 1)
    assert messages[0].startswith('SQLQUEUE["ROUTES"]["Stock.*"] is')
    assert all(message.endswith(": did you mean 'Warehouse'?") for message in messages)


def test_all_routes_need_one_query(queue_database: QueueDatabase) -> None:
    peers = [f"Peer{number}" for number in range(5)]
    install(queue_database, *peers)
    costs = []
    for routed in (peers[:1], peers):
        queue_database.configure(ENDPOINTS={"Sales": {}}, ROUTES={f"{each}.*": each for each in routed})
        with CaptureQueriesContext(queue_database.connection) as queries:
            assert found(queue_database.alias) == []
        costs.append(len(queries))
    assert costs == [1, 1]


def test_queue_with_send_only_rights_is_found(postgresql_database: QueueDatabase) -> None:
    install(postgresql_database, "Warehouse")
    postgresql_database.configure(ENDPOINTS={"Sales": {}}, ROUTES={"Peer.*": "Warehouse"})
    role = postgresql_database.create_role("sender")
    with postgresql_database.connection.cursor() as cursor:
        cursor.execute(f'GRANT INSERT ON "Warehouse" TO "{role}"')
    with postgresql_database.as_role(role):
        assert found(postgresql_database.alias) == []


def test_routes_to_configured_queues_are_accepted(queue_database: QueueDatabase) -> None:
    queue_database.configure(ENDPOINTS={"Sales": {}}, SEND_AS="Salse", ROUTES={"A.*": "Sales", "B.*": "Salse"})
    assert found() == found(queue_database.alias) == []


def install(database: QueueDatabase, *names: str) -> None:
    database.configure(ENDPOINTS={name: {"CALLBACKS": False} for name in names})
    call_command("sqlqueue_install", verbosity=0)


CALLS: dict[str, Callable[[str], object]] = {
    "send": lambda name: send(name, {}),
    "send_many": lambda name: send_many(name, [{}]),
}


@pytest.mark.parametrize("call", CALLS)
def test_sending_by_a_wrong_route_names_the_route_and_the_near_miss(queue_database: QueueDatabase, call: str) -> None:
    queue_database.configure(**MISSPELLED)

    with pytest.raises(QueueNotFound) as caught:
        CALLS[call]("Shop.Refund")
    assert str(caught.value).endswith('; SQLQUEUE["ROUTES"]["Shop.Refund"] names it: did you mean \'Sales\'?')
    assert caught.value.queue == "Salse"

    with pytest.raises(QueueNotFound) as caught:
        CALLS[call]("Peer.Order")
    assert str(caught.value).endswith('; SQLQUEUE["ROUTES"]["Peer.*"] names it')


def test_sending_to_a_misspelled_address_names_the_near_miss(queue_database: QueueDatabase) -> None:
    queue_database.configure(**MISSPELLED)
    with pytest.raises(QueueNotFound, match=r"does not exist.*: did you mean 'Sales'\?$"):
        send("Shop.Order", {}, to="Slaes")


# --- handlers -----------------------------------------------------------------------------------------------------------------


def place_order(message: Any, context: Any) -> None:
    """A handler."""


async def place_order_later(message: Any, context: Any) -> None:
    """A handler that is refused even with a message type."""


class PlacesOrders:
    """A class whose instances are handlers."""

    def __call__(self, message: Any, context: Any) -> None:
        """Handles nothing."""


@pytest.mark.parametrize("bare", [place_order, place_order_later, PlacesOrders])
def test_bare_decorator_is_refused_at_its_line(bare: Any) -> None:
    expected = rf"@handles decorates .*{bare.__name__} without a message type: write @handles\(PlaceOrder\)"
    with pytest.raises(HandlerError, match=expected):
        handles(bare)


def test_a_class_that_is_no_message_type_is_refused_before_it_decorates() -> None:
    with pytest.raises(
        MessageTypeError, match=r"the class tests\.conf\..*Desk is not a message type; decorate it with @message_type"
    ):
        handles(type("Desk", (), {"__module__": __name__}))


@pytest.fixture
def shared() -> Iterator[str]:
    """The path of a handler of this module."""

    def handler(message: Any, context: Any) -> None:
        """Handles nothing."""

    before = registry.all()
    handles("Shared.Message")(handler)
    yield f"{__name__}.shared.<locals>.handler"
    for each in registry.all():
        if each not in before:
            registry.remove(each)


@pytest.mark.parametrize("first", [[__name__], ["tests.conf"]])
def test_two_endpoints_with_the_same_handlers_and_no_routes_are_an_error(shared: str, first: list[str]) -> None:
    endpoints = {"Sales": {"HANDLERS": first}, "Billing": {"HANDLERS": [__name__]}, "Other": {"HANDLERS": []}}
    with override_settings(SQLQUEUE={"ENDPOINTS": endpoints}):
        (error,) = check_shared_handlers()

    assert (error.id, error.level) == ("sqlqueue.E027", checks.ERROR)
    assert error.msg == (
        f"the endpoints 'Sales' and 'Billing' have the same handler {shared}, and ROUTES is empty: "
        "it is undefined which of them receives a message"
    )


def test_worker_does_not_start_with_a_check_error(queue_database: QueueDatabase, shared: str) -> None:
    queue_database.configure(ENDPOINTS={name: {"HANDLERS": [__name__]} for name in ("Sales", "Billing")}, ROUTES={})

    with pytest.raises(CommandError) as caught:
        call_command("run_sqlqueue_worker", until_empty=True, install=True)

    assert (caught.value.returncode, str(caught.value).count("\n")) == (2, 0)
    assert str(caught.value).startswith("the endpoints 'Sales' and 'Billing' have the same handler ")
    remedy = "; list the modules of each endpoint in its HANDLERS, and the endpoint of each message type in ROUTES"
    assert str(caught.value).endswith(remedy)


@pytest.mark.usefixtures("shared")
def test_separate_routes_or_handlers_are_accepted() -> None:
    same = {"Sales": {"HANDLERS": [__name__]}, "Billing": {"HANDLERS": [__name__]}}
    with override_settings(SQLQUEUE={"ENDPOINTS": same, "ROUTES": {"Shared.*": "Sales"}}):
        assert check_shared_handlers() == []
    with override_settings(SQLQUEUE={"ENDPOINTS": {**same, "Billing": {"HANDLERS": []}}}):
        assert check_shared_handlers() == []
    with override_settings(SQLQUEUE={"ENDPOINTS": {"Sales": {}}}):
        assert check_shared_handlers() == []


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize(("key", "value"), [("RETRIES", Retry(2)), ("RATE_LIMITS", "1/s")])
def test_entry_for_a_type_without_handler_is_reported(key: str, value: object) -> None:
    entries = dict.fromkeys(["Shared.Mesage", "Shared.Message", "Shared.*", "Other.*"], value)
    with override_settings(SQLQUEUE={"ENDPOINTS": {"Sales": {"HANDLERS": [__name__], key: entries}}}):
        misspelled, other = check_types_of_handlers()

    at = f'SQLQUEUE["ENDPOINTS"]["Sales"]["{key}"]'
    assert (misspelled.id, misspelled.level) == ("sqlqueue.W010", checks.WARNING)
    why = "has no effect, because no handler of the endpoint handles it"
    assert misspelled.msg == f"{at}[\"Shared.Mesage\"] {why}: did you mean 'Shared.Message'?"
    assert other.msg == f'{at}["Other.*"] {why}'


@pytest.mark.parametrize("modules", [[], ["tests.conf.not_a_module"]])
def test_types_are_unknown_without_handlers(modules: list[str]) -> None:
    with override_settings(SQLQUEUE={"ENDPOINTS": {"Sales": {"HANDLERS": modules, "RATE_LIMITS": {"Other.Message": "1/s"}}}}):
        assert check_types_of_handlers() == []


MISSING = "which cannot be imported: No module named 'tests.conf.nothing'"


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("HANDLERS", ["tests.conf.nothing"], "HANDLERS names the module 'tests.conf.nothing', which does not exist"),
        ("HANDLERS", ["tests.conf.broken_handlers"], "NameError: name 'undefined' is not defined"),
        ("MIDDLEWARE", ["tests.conf.nothing.around"], f"MIDDLEWARE[0] names 'tests.conf.nothing.around', {MISSING}"),
        ("RECOVERABILITY", "tests.conf.nothing.policy", f"RECOVERABILITY names 'tests.conf.nothing.policy', {MISSING}"),
        ("RECOVERABILITY", f"{__name__}.MISSING", f"RECOVERABILITY names '{__name__}.MISSING', which is str"),
    ],
)
def test_what_a_worker_cannot_import_is_reported_once(key: str, value: object, reason: str) -> None:
    with override_settings(SQLQUEUE={"ENDPOINTS": {"Sales": {key: value}, "Billing": {key: value}, "Stock": {"HANDLERS": []}}}):
        (warning,) = check_worker_imports()
    assert (warning.id, warning.level) == ("sqlqueue.W011", checks.WARNING)
    assert warning.msg.startswith(f"a worker of 'Sales' and 'Billing' would not start: {reason}")


def test_only_a_worker_leaves_this_check_out() -> None:
    assert check_worker_imports in checks.registry.registry.get_checks()
    with override_settings(SQLQUEUE={"ENDPOINTS": {"Sales": {"HANDLERS": ["tests.conf.nothing"]}}}):
        assert "sqlqueue.W011" not in [each.id for each in checks.run_checks(tags=[TAG])]


def test_what_a_worker_can_import_is_accepted() -> None:
    sales = {"HANDLERS": [__name__], "RECOVERABILITY": "sqlqueue_app.default_policy"}
    with override_settings(SQLQUEUE={"ENDPOINTS": {"Sales": sales}}):
        assert check_worker_imports() == []


@pytest.mark.usefixtures("shared")
def test_rate_of_tasks_is_accepted(settings: Any) -> None:
    settings.TASKS = {"default": {"BACKEND": TASK_BACKEND, "OPTIONS": {"ENDPOINT": "Sales"}}}
    settings.SQLQUEUE = {"ENDPOINTS": {"Sales": {"HANDLERS": [__name__], "RATE_LIMITS": {TASK_MESSAGE: "1/s"}}}}
    assert check_types_of_handlers() == []


# --- the app ------------------------------------------------------------------------------------------------------------------

WITHOUT_APP = """
import django
from django.conf import settings

settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    SQLQUEUE={"ENDPOINTS": {"Sales": {}}, "ROUTES": {"Shop.*": "Sales"}},
)
django.setup()
from django.core.management import CommandError, call_command
from sqlqueue_app import SqlQueueError, pause, publish, request, send, send_many, set_concurrency, subscribe

for call in CALLS:
    try:
        exec(call)
    except (SqlQueueError, CommandError) as error:
        print(error)
"""
CALLS_WITHOUT_APP = [
    "send('Shop.Order', {})",
    "send_many('Shop.Order', [{}])",
    "publish('Shop.Ordered', {})",
    "request('Shop.Order', {})",
    "subscribe('Shop.Ordered', endpoint='Sales')",
    "pause('Sales')",
    "set_concurrency('Sales', 2)",
    "import sqlqueue_app.testing",
    "import sqlqueue_app.management.commands.run_sqlqueue_worker",
]
UNKNOWN_COMMAND = "call_command('run_sqlqueue_worker')"


@pytest.mark.once
def test_the_missing_app_is_named(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"CALLS = {[*CALLS_WITHOUT_APP, UNKNOWN_COMMAND]!r}\n{WITHOUT_APP}", encoding="utf-8")
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, script], env={"PYTHONPATH": str(root)}, capture_output=True, text=True, check=False)
    expected = ["'sqlqueue_app' is not in INSTALLED_APPS: add it there and run migrate"] * len(CALLS_WITHOUT_APP)
    expected.append("Unknown command: 'run_sqlqueue_worker'")
    assert done.stdout.splitlines() == expected, done.stderr
