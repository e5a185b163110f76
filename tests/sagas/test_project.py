"""A bare project defines a saga in its models.py: its own migration, a worker, Django's admin, the helpers for tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db import connections

from tests.support.databases import ROOT, QueueDatabase, _plain

Run = Callable[..., str]

SETTINGS = """
import json, os
SECRET_KEY = "only for tests"
USE_TZ = True
ROOT_URLCONF = "mysite.urls"
DATABASES = {"default": json.loads(os.environ["DATABASE"])}
INSTALLED_APPS = [
    "django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.messages",
    "django.contrib.sessions", "shop", "sqlqueue_app",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [{
    "BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True,
    "OPTIONS": {"context_processors": [
        "django.template.context_processors.request", "django.contrib.auth.context_processors.auth",
        "django.contrib.messages.context_processors.messages",
    ]},
}]
STATIC_URL = "static/"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
SQLQUEUE = {"ENDPOINTS": {"Sales": {"PURGE_EXPIRED_EVERY": 0}}, "ROUTES": {"Shop.*": "Sales"}}
"""

URLS = """
from django.contrib import admin
from django.urls import path

urlpatterns = [path("admin/", admin.site.urls)]
"""

MODELS = """
from dataclasses import dataclass
from datetime import timedelta

from django.db import models

from sqlqueue_app import Saga, continues, message_type, on_timeout, starts


@message_type("Shop.PlaceOrder")
@dataclass
class PlaceOrder:
    order_id: str


@message_type("Shop.OrderPaid")
@dataclass
class OrderPaid:
    order_id: str


@message_type("Shop.OrderExpired")
@dataclass
class OrderExpired:
    pass


class OrderSaga(Saga):
    correlate_by = "order_id"
    order_id = models.CharField(max_length=50, unique=True)
    paid = models.BooleanField(default=False)
    state = models.CharField(max_length=20, default="new order")
    messages = models.IntegerField(default=7)

    @starts(PlaceOrder)
    def place(self, message, context):
        self.request_timeout(context, OrderExpired(), delay=timedelta(days=1))

    @continues(OrderPaid)
    def pay(self, message, context):
        self.paid = True
        self.complete()

    @on_timeout(OrderExpired)
    def expire(self, message, context):
        self.complete()
"""

ADMIN = """
from django.contrib import admin
from shop.models import OrderSaga
from sqlqueue_app import SagaAdmin

@admin.register(OrderSaga)
class OrderSagaAdmin(SagaAdmin):
    list_display = (*SagaAdmin.list_display, "paid")
"""

# Each process of Python costs a second: these take one for two commands.
MIGRATE = """
import importlib
from django.core.management import call_command
call_command("makemigrations", "shop", verbosity=0)
importlib.invalidate_caches()
call_command("migrate", verbosity=0)
"""

PLAY = """
from django.core.management import call_command
from shop.models import *
from sqlqueue_app import send_many
send_many([PlaceOrder("41<b>"), PlaceOrder("42"), OrderPaid("42")])
call_command("run_sqlqueue_worker", "--until-empty", "--processes", "0", "--max-concurrency", "1")
"""

PAGES = """
import json, re, sys
from django.contrib.auth.models import Permission, User
from django.test import Client
from shop.models import OrderSaga
from django.test.utils import override_settings
override_settings(ALLOWED_HOSTS=["testserver"]).enable()
User.objects.filter(username__in=["boss", "viewer", "nobody"]).delete()
User.objects.create_superuser("boss")
viewer = User.objects.create_user("viewer", is_staff=True)
viewer.user_permissions.add(Permission.objects.get(codename="view_ordersaga"))
User.objects.create_user("nobody", is_staff=True)
def get(user, url, **data):
    client = Client()
    client.force_login(User.objects.get(username=user))
    response = client.get(url, data)
    return response.status_code, response.content.decode()
listed = "/admin/shop/ordersaga/"
running, done = (OrderSaga.objects.get(order_id=each) for each in ("41<b>", "42"))
found = {
    "list": get("viewer", listed), "running": get("viewer", listed, state="running"),
    "overdue": get("viewer", listed, state="overdue"), "completed": get("viewer", listed, state="completed"),
    "search": get("viewer", listed, q="42"), "detail": get("viewer", f"{listed}{done.pk}/change/"),
    "waiting": get("boss", f"{listed}{running.pk}/change/"), "refused": get("nobody", listed),
    "index": get("viewer", "/admin/"), "add": get("boss", f"{listed}add/"), "delete": get("boss", f"{listed}{done.pk}/delete/"),
    "conversation": done.conversation_id,
}
print(json.dumps(found))
"""


@pytest.fixture
def project(queue_database: QueueDatabase, tmp_path: Path) -> Run:
    return make_project(queue_database, tmp_path)


def make_project(queue_database: QueueDatabase, tmp_path: Path) -> Run:
    (tmp_path / "mysite").mkdir()
    (tmp_path / "shop").mkdir()
    for file, text in {
        "mysite/__init__.py": "",
        "mysite/settings.py": SETTINGS,
        "mysite/urls.py": URLS,
        "shop/__init__.py": "",
        "shop/models.py": MODELS,
    }.items():
        (tmp_path / file).write_text(text)
    database = json.dumps(connections.settings[queue_database.alias], default=_plain)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "mysite.settings", "PYTHONPATH": path, "DATABASE": database}

    def run(*arguments: str, fails: bool = False) -> str:
        command = [sys.executable, "-W", "error", *arguments]
        ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert (ended.returncode != 0) is fails, ended.stdout + ended.stderr
        return ended.stdout + ended.stderr if fails else ended.stdout

    in_shell(run, MIGRATE)
    return run


def in_shell(project: Run, code: str) -> str:
    return project("-c", f"import django\ndjango.setup()\n{code}")


def played(project: Run) -> None:
    in_shell(project, PLAY)


def test_migration_and_checks(project: Run, tmp_path: Path) -> None:
    project("-m", "django", "makemigrations", "--check", "--dry-run")
    project("-m", "django", "check", "--fail-level", "WARNING")
    migration = (tmp_path / "shop/migrations/0001_initial.py").read_text()
    assert "dependencies = [\n    ]" in migration.replace("dependencies = []", "dependencies = [\n    ]")
    (tmp_path / "shop/models.py").write_text(MODELS.replace("max_length=50, unique=True", "max_length=50"))
    assert "sqlqueue.E051" in project("-m", "django", "check", fails=True)


def test_pages_of_the_admin(project: Run) -> None:
    played(project)
    found: dict[str, Any] = json.loads(in_shell(project, PAGES))
    conversation = found.pop("conversation")
    status = {name: code for name, (code, _) in found.items()}
    assert status == {**dict.fromkeys(found, 200), "refused": 403, "add": 403, "delete": 403}
    text = {name: page for name, (_, page) in found.items()}
    assert "41&lt;b&gt;" in text["list"]
    assert "41<b>" not in "".join(text.values())
    for name, shown in {"list": (1, 1), "running": (1, 0), "overdue": (0, 0), "completed": (0, 1), "search": (0, 1)}.items():
        has = [f">{order}</a>" in text[name] for order in ("41&lt;b&gt;", "42")]
        assert has == [bool(each) for each in shown], name
    assert "Shop.PlaceOrder" in text["detail"]
    assert "Saga continued, Saga completed" in text["detail"]
    assert "paid: True" in text["detail"]
    # The model has fields of these names.
    assert '<td class="field-saga_state">Running</td>' in text["list"]
    assert "new order" in text["detail"]
    assert '<td class="field-saga_state">Saga completed</td>' in text["list"]
    # Rows are cards on a phone: Django's style cuts off a table that is wider than its fieldset.
    assert '<td data-label="Changes">' in text["detail"]
    assert "sqlqueue_app/dashboard.css" in text["detail"]
    assert f"/{conversation}/" in text["detail"]
    assert "Shop.OrderExpired" in text["waiting"]
    assert '<input type="submit"' not in text["detail"]
    assert "Order sagas" in text["index"]
    # A strict Content-Security-Policy forbids both.
    for page in (text["detail"], text["list"]):
        assert "<script>" not in page
        assert " style=" not in page


def test_admin_of_the_project_takes_precedence(project: Run, tmp_path: Path) -> None:
    (tmp_path / "shop/admin.py").write_text(ADMIN)
    played(project)
    found = json.loads(in_shell(project, PAGES))
    assert "column-paid" in found["list"][1]


def test_project_without_sagas_does_not_load_them(sqlite_database: QueueDatabase) -> None:
    code = (
        "import sys, django\ndjango.setup()\n"
        "import sqlqueue_app.worker.run, sqlqueue_app.admin\nfrom sqlqueue_app import handles, send\n"
        "assert not [each for each in sys.modules if each.startswith('sqlqueue_app.sagas')]"
    )
    subprocess.run([sys.executable, "-c", code], env=sqlite_database.child_environment(), check=True, timeout=120)


TESTS = """
from datetime import timedelta
from django.test import TestCase
from shop.models import *
from sqlqueue_app.testing import FakeContext, InMemoryEndpoint, assert_sent, drain
from sqlqueue_app import send

class Sagas(TestCase):
    def test_in_memory(self):
        with InMemoryEndpoint("Sales") as endpoint:
            endpoint.handle(PlaceOrder("42"))
            saga = OrderSaga.objects.get(order_id="42")
            assert saga.completed_at is None and len(saga.timeouts) == 1
            endpoint.clock.advance(timedelta(hours=23))
            endpoint.drain()
            assert OrderSaga.objects.get(order_id="42").completed_at is None
            endpoint.clock.advance(timedelta(hours=2))
            endpoint.drain()
            assert OrderSaga.objects.get(order_id="42").completed_at is not None
            assert not endpoint.failed()

    def test_failed_attempt_in_memory(self):
        broken = [True, False]
        original = OrderSaga.request_timeout
        def failing(*args, **kwargs):
            if broken.pop(0):
                raise LookupError
            return original(*args, **kwargs)
        OrderSaga.request_timeout = failing
        try:
            with InMemoryEndpoint("Sales", settings={"IMMEDIATE_RETRIES": 1}) as endpoint:
                endpoint.handle(PlaceOrder("42"), raise_errors=False)
                assert [each["what"] for each in OrderSaga.objects.get().history] == ["started"]
        finally:
            OrderSaga.request_timeout = original

    def test_drain(self):
        send(PlaceOrder("42"))
        drain("Sales")
        assert_sent(OrderExpired, delay=timedelta(days=1))
        drain("Sales", after=timedelta(days=1, seconds=1))
        assert OrderSaga.objects.get(order_id="42").completed_at is not None

    def test_method_alone(self):
        saga, context = OrderSaga(order_id="42"), FakeContext(endpoint="Sales")
        saga.place(PlaceOrder("42"), context)
        (timeout,) = context.sent
        assert timeout.delay == timedelta(days=1), timeout.delay
        saga.pay(OrderPaid("42"), context)
        assert saga.paid and saga.completed_at is not None
"""


def test_helpers_for_tests(sqlite_database: QueueDatabase, tmp_path: Path) -> None:
    run = make_project(sqlite_database, tmp_path)
    (tmp_path / "shop/tests.py").write_text(TESTS)
    run("-m", "django", "test", "shop", "--verbosity", "0")
