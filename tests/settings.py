"""Django settings of the tests. Importing them starts nothing: servers and files come from tests.support.databases."""

from __future__ import annotations

import json
import os
from typing import Any

from tests.support import sqlserver

SECRET_KEY = "only for tests"
DEBUG = False
ALLOWED_HOSTS = ["*"]
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ROOT_URLCONF = "tests.support.urls"
STATIC_URL = "static/"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "sqlqueue_app",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

# NAME, HOST and the like are filled in by the fixtures: a file, a throw-away server, a database of this session.
DATABASES: dict[str, dict[str, Any]] = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": "/nonexistent/ask-for-a-database-fixture.sqlite3",
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 30,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL",
        },
    },
    "postgresql": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "ask-for-a-database-fixture",
        "HOST": "/nonexistent",
    },
}
if sqlserver.is_named():
    DATABASES["mssql"] = sqlserver.parse_url(os.environ[sqlserver.URL_VARIABLE])
# A setting of mssql-django: closing a connection ends its session; the driver does not keep it for the next one.
DATABASE_CONNECTION_POOLING = False

DATABASE_ROUTERS = ["sqlqueue_app.routers.SqlQueueRouter"]

SQLQUEUE: dict[str, Any] = {"DATABASE": "default", "ENDPOINTS": {}}

# A process that a test starts has the settings of the test (QueueDatabase.child_environment writes them).
if os.environ.get("SQLQUEUE_TEST_CHILD"):
    _of_parent = json.loads(os.environ["SQLQUEUE_TEST_CHILD"])
    DATABASES = _of_parent["DATABASES"]
    SQLQUEUE = _of_parent["SQLQUEUE"]
    # Some tests write the variable themselves, with only the other two settings.
    if "STORAGES" in _of_parent:
        STORAGES = _of_parent["STORAGES"]
