"""Django settings of the measured processes: an ordinary project with the database of the benchmark."""

from __future__ import annotations

import json
import os
import tempfile
from typing import Any

SECRET_KEY = "only for benchmarks"
DEBUG = False
USE_TZ = True
TIME_ZONE = "UTC"
ALLOWED_HOSTS = ["*"]
STATIC_URL = "static/"
ROOT_URLCONF = "benchmarks.dashboard_urls"
# The files of claim checks, which the worker deletes.
MEDIA_ROOT = os.path.join(tempfile.gettempdir(), "sqlqueue-bench")
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

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

# Written by benchmarks.databases for each child process.
DATABASES: dict[str, dict[str, Any]] = {"default": json.loads(os.environ["SQLQUEUE_BENCH_DATABASE"])}

if "SQLQUEUE_BENCH_SECOND" in os.environ:
    DATABASES["second"] = json.loads(os.environ["SQLQUEUE_BENCH_SECOND"])

_ENDPOINT: dict[str, Any] = json.loads(os.environ["SQLQUEUE_BENCH_ENDPOINT"])

SQLQUEUE: dict[str, Any] = {
    **({"CLAIM_CHECK": {"ABOVE": 100_000}} if "SQLQUEUE_BENCH_CLAIM_CHECK" in os.environ else {}),
    **({"PIPELINE": {"LAKE": os.environ["SQLQUEUE_BENCH_LAKE"]}} if "SQLQUEUE_BENCH_LAKE" in os.environ else {}),
    "ROUTES": {"Bench.*": _ENDPOINT["name"]},
    "SEND_AS": _ENDPOINT["name"],
    "OUTGOING_MIDDLEWARE": (
        ["benchmarks.hook_handlers.middleware"] if os.environ.get("SQLQUEUE_BENCH_HOOK") == "middleware" else []
    ),
    "ENDPOINTS": {
        _ENDPOINT["name"]: {"HANDLERS": ["benchmarks.handlers"], "MAX_CONCURRENCY": 8, **_ENDPOINT["options"]},
        # for pages about many queues
        **{f"Shop{number}": {"CALLBACKS": False} for number in range(int(os.environ.get("SQLQUEUE_BENCH_ENDPOINTS", "0")))},
    },
}
