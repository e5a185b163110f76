"""The shape of the code: imports go one way, pure parts stay pure, nothing grows too long.

docs/architecture.md explains the layout; the page, the code and this table change together.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.databases import ROOT

PACKAGE = "sqlqueue_app"
MAX_FILE_LENGTH = 700
MAX_FUNCTION_LENGTH = 50

# --- the arrows: a part, and exactly the parts that it imports ----------------------------------------------------------------

ALLOWED: dict[str, frozenset[str]] = {
    "messages": frozenset(),
    "policies": frozenset(),
    "conf": frozenset({"messages", "policies"}),
    "dialects": frozenset({"messages"}),
    "health_checks": frozenset({"messages"}),
    "lake": frozenset({"messages"}),
    "spark": frozenset({"messages", "dialects", "lake"}),
    "tables": frozenset({"messages", "policies", "dialects"}),
    "migration_operations": frozenset({"messages", "conf", "dialects", "tables"}),
    "models": frozenset({"messages", "conf", "dialects", "tables"}),
    "signals": frozenset({"messages"}),
    "sending": frozenset({"messages", "policies", "conf", "tables", "signals"}),
    "installation": frozenset({"messages", "conf", "dialects", "tables", "models", "status"}),
    "migrations": frozenset({"models"}),
    "receiving": frozenset({"messages", "policies", "conf", "dialects", "tables", "models", "signals", "sending"}),
    "routers": frozenset({"messages", "conf", "models"}),
    "status": frozenset({"messages", "conf", "dialects", "tables", "models", "sending", "receiving"}),
    "tasks": frozenset({"messages", "policies", "conf", "tables", "models", "sending", "receiving"}),
    "browsing": frozenset({"messages", "policies", "conf", "lake", "tables", "models", "sending", "receiving", "status"}),
    "checks": frozenset({"messages", "policies", "conf", "dialects", "tables", "sending", "installation", "status"}),
    "monitoring": frozenset(
        {"messages", "conf", "dialects", "health_checks", "tables", "models", "installation", "receiving", "status"}
    ),
    "testing": frozenset({"messages", "policies", "conf", "dialects", "tables", "sending", "installation", "receiving", "status"}),
    "sagas": frozenset({"messages", "policies", "conf", "tables", "models", "receiving", "status"}),
    "__init__": frozenset({"messages", "policies", "health_checks", "sending", "receiving", "status", "browsing", "sagas"}),
    "failures": frozenset({"messages", "conf", "tables", "models", "sending", "receiving", "status", "browsing"}),
    "urls": frozenset({"messages", "conf", "monitoring"}),
    "dashboard": frozenset(
        {"messages", "conf", "lake", "tables", "models", "receiving", "status", "browsing", "monitoring", "failures"}
    ),
    "pipeline": frozenset({"messages", "conf", "lake", "spark", "tables", "models", "receiving", "status", "failures"}),
    "worker": frozenset(
        {
            "messages",
            "policies",
            "conf",
            "health_checks",
            "tables",
            "models",
            "sending",
            "installation",
            "receiving",
            "status",
            "browsing",
            "monitoring",
            "failures",
        }
    ),
    "admin": frozenset({"dashboard"}),
    "templatetags": frozenset({"dashboard"}),
    "apps": frozenset({"models", "sending", "installation", "checks", "sagas", "dashboard", "testing"}),
    "management": frozenset(
        {
            "messages",
            "policies",
            "conf",
            "dialects",
            "tables",
            "migration_operations",
            "models",
            "installation",
            "receiving",
            "status",
            "browsing",
            "monitoring",
            "failures",
            "pipeline",
            "worker",
        }
    ),
}

NO_DJANGO = frozenset({"messages", "policies", "dialects", "lake", "spark"})
NO_CLOCK_NO_THREAD = frozenset({"messages", "policies"})
CLOCKS_AND_THREADS = frozenset(
    {"time", "threading", "_thread", "asyncio", "concurrent", "multiprocessing", "sched", "queue", "signal"}
)
READINGS_OF_THE_CLOCK = frozenset({"now", "utcnow", "today"})


@dataclass(frozen=True, slots=True)
class Finding:
    """One breach, printed as file:line."""

    file: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}"


@dataclass(frozen=True, slots=True)
class Module:
    """One file of the package: its layer and its syntax tree."""

    path: Path
    root: Path

    @property
    def layer(self) -> str:
        return self.path.relative_to(self.root / PACKAGE).parts[0].removesuffix(".py")

    @property
    def name(self) -> str:
        return self.path.relative_to(self.root).as_posix()

    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_text(encoding="utf-8"), filename=self.name)

    def finding(self, node: ast.AST, what: str) -> Finding:
        return Finding(self.name, getattr(node, "lineno", 1), what)


def modules(root: Path) -> list[Module]:
    return [Module(path, root) for path in sorted((root / PACKAGE).rglob("*.py"))]


def imports(module: Module) -> Iterator[tuple[ast.AST, str]]:
    """Every imported dotted name with its place, also inside functions and under TYPE_CHECKING.

    `from a import b` gives `a.b`, because b may be a module; import_module("a.b") with a literal counts as well.
    """
    for node in ast.walk(module.tree()):
        if isinstance(node, ast.Import):
            yield from ((node, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node, f"{'.' * node.level}{node.module or ''}.{name.name}") for name in node.names)
        elif isinstance(node, ast.Call) and _called(node) in {"import_module", "__import__"} and node.args:
            target = node.args[0]
            if isinstance(target, ast.Constant) and isinstance(target.value, str):
                yield node, target.value


def _called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def layer_of_import(name: str, root: Path) -> str | None:
    """The layer of an imported name; None for imports that are not arrows, "__init__" for exports of the package itself."""
    parts = name.split(".")
    if parts[0] != PACKAGE or name == f"{PACKAGE}.__version__":
        return None
    if len(parts) > 1 and ((root / PACKAGE / parts[1]).is_dir() or (root / PACKAGE / f"{parts[1]}.py").is_file()):
        return parts[1]
    return "__init__"


def find_wrong_arrows(root: Path) -> Iterator[Finding]:
    for module in modules(root):
        for node, name in imports(module):
            if name.startswith("."):
                yield module.finding(node, f"imports {name!r} relatively: write the whole name")
                continue
            target = layer_of_import(name, root)
            if target is None or target == module.layer:
                continue
            if module.layer not in ALLOWED:
                yield module.finding(node, f"{module.layer!r} has no row in the table of arrows")
            elif target not in ALLOWED[module.layer]:
                yield module.finding(node, f"{module.layer!r} must not import {target!r} ({name})")


def find_unused_arrows(root: Path) -> Iterator[Finding]:
    """Arrows of the table that no import uses."""
    used = {
        (module.layer, target)
        for module in modules(root)
        for _, name in imports(module)
        if (target := layer_of_import(name, root)) is not None
    }
    for layer, targets in ALLOWED.items():
        for target in sorted(targets):
            if (layer, target) not in used:
                yield Finding("tests/test_architecture.py", 1, f"no file of {layer!r} imports {target!r}: take it out of the table")


def find_django(root: Path) -> Iterator[Finding]:
    for module in modules(root):
        if module.layer in NO_DJANGO:
            for node, name in imports(module):
                if name.split(".")[0] == "django":
                    yield module.finding(node, f"{module.layer!r} must not import Django ({name})")


def find_clocks_and_threads(root: Path) -> Iterator[Finding]:
    for module in modules(root):
        if module.layer not in NO_CLOCK_NO_THREAD:
            continue
        for node, name in imports(module):
            if name.split(".")[0] in CLOCKS_AND_THREADS:
                yield module.finding(node, f"{module.layer!r} has no clock and no thread ({name})")
        for node in ast.walk(module.tree()):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in READINGS_OF_THE_CLOCK:
                yield module.finding(node, f"{module.layer!r} reads the clock ({node.func.attr}): have it handed in")


def find_sleep(root: Path) -> Iterator[Finding]:
    for module in modules(root):
        for node in ast.walk(module.tree()):
            if isinstance(node, ast.Call) and _called(node) == "sleep":
                yield module.finding(node, "sleeps: wait for an event, so that a stop ends it at once")
        for node, name in imports(module):
            if name.split(".")[-1] == "sleep":
                yield module.finding(node, "imports sleep")


def find_too_long(root: Path) -> Iterator[Finding]:
    for module in modules(root):
        lines = len(module.path.read_text(encoding="utf-8").splitlines())
        # Django writes migrations.
        if lines > MAX_FILE_LENGTH and module.layer != "migrations":
            yield Finding(
                module.name,
                lines,
                f"has {lines} lines, {MAX_FILE_LENGTH} are allowed: a file is one subject, so move what belongs to another "
                "to its file, or say it shorter; do not cut a subject in two",
            )
        for node in ast.walk(module.tree()):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > MAX_FUNCTION_LENGTH:
                    yield module.finding(
                        node,
                        f"{node.name}() has {length} lines, {MAX_FUNCTION_LENGTH} are allowed: give a step of it a name of its own",
                    )


RULES = [find_wrong_arrows, find_django, find_clocks_and_threads, find_sleep, find_too_long]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_code_follows_the_rule(rule: object) -> None:
    assert callable(rule)
    assert [str(finding) for finding in rule(ROOT)] == []


def test_every_layer_has_a_row() -> None:
    assert {module.layer for module in modules(ROOT)} == set(ALLOWED)


def test_every_arrow_of_the_table_is_used() -> None:
    assert [str(finding) for finding in find_unused_arrows(ROOT)] == []


def test_unused_arrow_is_found(tmp_path: Path) -> None:
    _tree_with(tmp_path, "tables/a.py", "import sqlqueue_app.messages")

    found = [finding.what for finding in find_unused_arrows(tmp_path)]

    assert any("'tables' imports 'conf'" in what or "'tables' imports 'dialects'" in what for what in found)
    assert not any("'tables' imports 'messages'" in what for what in found)


def test_arrows_have_no_cycle() -> None:
    left = dict(ALLOWED)
    while left:
        bottom = [layer for layer, below in left.items() if not below & set(left)]
        assert bottom, f"these import each other in a circle: {sorted(left)}"
        for layer in bottom:
            del left[layer]


@pytest.mark.parametrize("outermost", ["dashboard", "tasks", "management", "testing"])
def test_outermost_layers_are_not_imported(outermost: str) -> None:
    template_folders = {"admin", "apps", "templatetags", "urls"}
    assert [layer for layer, below in ALLOWED.items() if outermost in below and layer not in template_folders] == []


# --- the size of the package --------------------------------------------------------------------------------------------------

# Sagas, keys, priorities, schedules in the database, hooks and claim checks are subjects of their own, so they need files.
MAX_FILES = 265
MAX_LINES = 62_000


def test_package_has_few_files() -> None:
    assert len(modules(ROOT)) <= MAX_FILES


def test_package_has_few_lines() -> None:
    assert sum(len(module.path.read_text(encoding="utf-8").splitlines()) for module in modules(ROOT)) <= MAX_LINES


def test_dashboard_has_few_lines() -> None:
    pages = [module for module in modules(ROOT) if module.layer == "dashboard"]
    assert sum(len(module.path.read_text(encoding="utf-8").splitlines()) for module in pages) <= 7_500


# --- names --------------------------------------------------------------------------------------------------------------------

# One subject in several layers: its table, model, reader and page have the same file name.
ON_SEVERAL_STOREYS = {
    "analytics.py",
    "checks.py",
    "conversations.py",
    "delayed.py",
    "endpoints.py",
    "failures.py",
    "in_doubt.py",
    "installation.py",
    "instances.py",
    "messages.py",
    "operations.py",
    "overview.py",
    "queues.py",
    "run.py",
    "schedules.py",
    "search.py",
    "subscriptions.py",
    "tasks.py",
}
# Django requires these names.
NAMED_BY_DJANGO = {"Command", "Meta", "Migration"}


def repeated(names: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The names that occur in more than one file, with these files."""
    places: dict[str, set[str]] = defaultdict(set)
    for name, file in names:
        places[name].add(file)
    return {name: sorted(files) for name, files in places.items() if len(files) > 1}


def class_names(root: Path) -> Iterator[tuple[str, str]]:
    for module in modules(root):
        for node in ast.walk(module.tree()):
            if isinstance(node, ast.ClassDef) and node.name not in NAMED_BY_DJANGO:
                yield node.name, module.name


def test_class_names_are_unique() -> None:
    assert repeated(class_names(ROOT)) == {}


def test_file_names_are_unique_except_for_shared_subjects() -> None:
    files = [(module.path.name, module.name) for module in modules(ROOT) if module.path.name != "__init__.py"]

    assert set(repeated(files)) == ON_SEVERAL_STOREYS


def test_duplicate_class_name_is_found(tmp_path: Path) -> None:
    _tree_with(tmp_path, "tables/a.py", "class Page: ...")
    (tmp_path / PACKAGE / "messages/b.py").write_text("class Page: ...\nclass Other: ...", encoding="utf-8")

    assert repeated(class_names(tmp_path)) == {"Page": [f"{PACKAGE}/messages/b.py", f"{PACKAGE}/tables/a.py"]}


# --- the architecture page ----------------------------------------------------------------------------------------------------

PAGE = ROOT / "docs" / "architecture.md"


def test_page_has_the_same_arrows() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", PAGE.read_text("utf-8").split("| Part | Imports |")[1], re.MULTILINE)

    assert {part: frozenset(re.findall(r"`(\w+)`", targets)) for part, targets in rows} == ALLOWED


def test_page_names_existing_files() -> None:
    named = set(re.findall(r"`([a-z_/]+/|(?:[a-z_]+/)*[a-z_]+\.py)`", PAGE.read_text("utf-8")))

    assert len(named) > 40
    assert [path for path in sorted(named) if not (ROOT / PACKAGE / path).exists() and not (ROOT / path).exists()] == []


# --- the tests ----------------------------------------------------------------------------------------------------------------

# Runs the contract tests of the queue again, in memory.
RUN_AGAIN = {"tests/testing/test_contract.py"}
SHARED = {"tests.support", "tests.settings"}


def find_borrowed_helpers(root: Path) -> Iterator[Finding]:
    """The imports of a test module from another test module or from a folder other than its own."""
    for path in sorted((root / "tests").rglob("*.py")):
        module = Module(path, root)
        own = ".".join(path.relative_to(root).parts[:2])
        for node, name in imports(module):
            parts = name.split(".")
            if parts[0] != "tests" or module.name in RUN_AGAIN:
                continue
            if any(part.startswith("test_") for part in (*parts[1:-1], *parts[2:3])):
                yield module.finding(node, f"imports {name} from a test module: helpers have a module of their own")
            elif ".".join(parts[:2]) not in {own, *SHARED}:
                yield module.finding(node, f"imports {name} from another folder: shared helpers live in tests/support")


def test_test_modules_borrow_no_helpers() -> None:
    assert [str(finding) for finding in find_borrowed_helpers(ROOT)] == []


BORROWED = {
    "from tests.sales.test_orders import order": "from a test module",
    "from tests.sales import test_orders": "from a test module",
    "from tests.billing.invoices import invoice": "from another folder",
}


@pytest.mark.parametrize("text", BORROWED)
def test_borrowed_helper_is_found(text: str, tmp_path: Path) -> None:
    for folder in ("sales", "billing", "support"):
        (tmp_path / "tests" / folder).mkdir(parents=True)
    (tmp_path / "tests/sales/test_prices.py").write_text(text + "\nfrom tests.support.bench import Bench\n", encoding="utf-8")

    found = [str(finding) for finding in find_borrowed_helpers(tmp_path)]

    assert len(found) == 1
    assert BORROWED[text] in found[0]


# --- the rules themselves, on a made-up tree ----------------------------------------------------------------------------------

BREACHES = [
    (find_wrong_arrows, "messages/a.py", "import sqlqueue_app.tables"),
    (find_wrong_arrows, "messages/a.py", "from sqlqueue_app import tables"),
    (find_wrong_arrows, "messages/a.py", "from sqlqueue_app.tables.queue import QueueTable"),
    (find_wrong_arrows, "tables/a.py", "def f():\n    from sqlqueue_app.dashboard import views"),
    (find_wrong_arrows, "tables/a.py", "if TYPE_CHECKING:\n    from sqlqueue_app.sending.sender import Sender"),
    (find_wrong_arrows, "tables/a.py", "importlib.import_module('sqlqueue_app.receiving.endpoint')"),
    (find_wrong_arrows, "tables/a.py", "from . import queue"),
    (find_wrong_arrows, "status/a.py", "from sqlqueue_app.management.commands import run"),
    (find_wrong_arrows, "dialects/a.py", "from sqlqueue_app import send"),
    (find_wrong_arrows, "invented/a.py", "import sqlqueue_app.messages"),
    (find_wrong_arrows, "spark/a.py", "import sqlqueue_app.conf"),
    (find_django, "dialects/a.py", "def f():\n    from django.db import connection"),
    (find_django, "policies/a.py", "import django.utils.timezone"),
    (find_clocks_and_threads, "policies/a.py", "import time"),
    (find_clocks_and_threads, "messages/a.py", "from threading import Event"),
    (find_clocks_and_threads, "policies/a.py", "from concurrent.futures import ThreadPoolExecutor"),
    (find_clocks_and_threads, "messages/a.py", "stamp = datetime.now(UTC)"),
    (find_clocks_and_threads, "messages/a.py", "stamp = datetime.datetime.utcnow()"),
    (find_sleep, "receiving/a.py", "import time\ntime.sleep(1)"),
    (find_sleep, "receiving/a.py", "from time import sleep as nap"),
    (find_too_long, "tables/a.py", "x = 1\n" * (MAX_FILE_LENGTH + 1)),
    (find_too_long, "tables/a.py", "def f():\n" + "    x = 1\n" * MAX_FUNCTION_LENGTH),
]

FINE = [
    ("tables/a.py", "from sqlqueue_app import __version__"),
    ("tables/a.py", "from sqlqueue_app.messages.errors import QueueNotFound"),
    ("tables/a.py", "from sqlqueue_app.tables.queue import QueueTable"),
    ("tables/a.py", "from django.db import connections\nimport threading"),
    ("messages/a.py", "from datetime import datetime, timedelta"),
    ("management/a.py", "from sqlqueue_app.pipeline import job"),
    ("tables/a.py", "x = 1\n" * MAX_FILE_LENGTH),
    ("tables/a.py", "def f():\n" + "    x = 1\n" * (MAX_FUNCTION_LENGTH - 1)),
]


def _tree_with(root: Path, file: str, text: str) -> None:
    for layer in ("tables", "dashboard", "sending", "management", "messages", "spark", "pipeline"):
        (root / PACKAGE / layer).mkdir(parents=True)
    for layer in ("endpoint", "conf"):
        (root / PACKAGE / f"{layer}.py").touch()
    path = root / PACKAGE / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(("rule", "file", "text"), BREACHES)
def test_breach_is_found(rule: object, file: str, text: str, tmp_path: Path) -> None:
    _tree_with(tmp_path, file, text)

    assert callable(rule)
    found = list(rule(tmp_path))

    assert [finding.file for finding in found] == [f"{PACKAGE}/{file}"]


@pytest.mark.parametrize(("file", "text"), FINE)
def test_allowed_code_is_not_reported(file: str, text: str, tmp_path: Path) -> None:
    _tree_with(tmp_path, file, text)

    assert [str(finding) for rule in RULES for finding in rule(tmp_path)] == []
