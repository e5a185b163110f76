"""Settings of a project with the peers that need Django, each as documented."""

from __future__ import annotations

import json
import os
from typing import Any

SECRET_KEY = "only for benchmarks"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
# Both peers let Django close old connections with each task. With Django's default age of 0 seconds they would reconnect each time.
DATABASES: dict[str, dict[str, Any]] = {"default": json.loads(os.environ["BENCH_DJANGO_DATABASE"]) | {"CONN_MAX_AGE": 600}}

_PEER = os.environ["BENCH_PEER"]
INSTALLED_APPS = ["django.contrib.contenttypes", {"django_tasks_db": "django_tasks_db", "django_q2": "django_q"}[_PEER]]

TASKS = {"default": {"BACKEND": "django_tasks_db.DatabaseBackend", "QUEUES": ["default"]}} if _PEER == "django_tasks_db" else {}

# the example of its documentation for the ORM broker; the number of workers and the log level are ours
Q_CLUSTER = {
    "name": "DjangORM",
    "workers": int(os.environ.get("BENCH_CONCURRENCY", "1")),
    "timeout": 90,
    "retry": 120,
    "queue_limit": 50,
    "bulk": 10,
    "orm": "default",
    "log_level": "WARNING",
}
