"""The files of the deployment page are valid, as far as this can be checked without Docker and Kubernetes."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from django.core.management import load_command_class

from tests.support.databases import ROOT
from tests.support.doc_pages import blocks

PAGE = ROOT / "docs" / "howto" / "deploy.md"
DATABASES_PAGE = ROOT / "docs" / "howto" / "configure-the-database.md"
# From 0 (safe) to 10; systemd rates values below 2 as "OK".
MAX_EXPOSED = 2.0


def texts(kind: str) -> list[str]:
    return [block.text for block in blocks(PAGE) if block.kind == kind]


def manifests() -> list[dict[str, Any]]:
    return [document for text in texts("yaml") for document in yaml.safe_load_all(text) if "apiVersion" in document]


def compose() -> dict[str, Any]:
    (found,) = [document for text in texts("yaml") for document in yaml.safe_load_all(text) if "services" in document]
    return found


def containers(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    spec = manifest["spec"]["template"]["spec"]
    return [*spec.get("initContainers", []), *spec["containers"]]


def commands() -> Iterator[list[str]]:
    """Every command that starts a program of Django, in any file of the page."""
    yield json.loads(re.findall(r"^CMD (\[.*\])$", "\n".join(texts("dockerfile")), re.MULTILINE)[0])
    yield from (each["command"] for each in compose()["services"].values() if "build" in each)
    yield from (each["command"] for manifest in manifests() for each in containers(manifest))
    (unit,) = texts("ini")
    yield shlex.split(re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)[0])


@pytest.mark.parametrize("manifest", manifests(), ids=lambda each: str(each["metadata"]["name"]))
def test_manifests_are_valid_for_kubernetes(manifest: dict[str, Any]) -> None:
    kubernetes_validate.validate(manifest, "1.34", strict=True)


def test_worker_has_time_to_drain_and_site_has_probes() -> None:
    worker, web, job = manifests()
    assert worker["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= 60
    # "sqlqueue_install --check" would fail for as long as a table of NServiceBus lacks an optional index
    assert [each["command"][2:] for each in worker["spec"]["template"]["spec"]["initContainers"]] == [["migrate", "--check"]]
    (site,) = containers(web)
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= site.keys()
    assert site["lifecycle"]["preStop"]
    # without it the probe asks for the address of the pod, which Django refuses unless ALLOWED_HOSTS contains it
    assert [each["name"] for each in site["readinessProbe"]["httpGet"]["httpHeaders"]] == ["Host"]
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"


def test_compose_services_depend_on_existing_services() -> None:
    services = compose()["services"]
    assert set(services) == {"db", "migrate", "web", "worker"}
    # the server that creates the database listens on a socket only: it is not yet the one that the other services reach
    assert "--host" in services["db"]["healthcheck"]["test"][1]
    for service in services.values():
        assert set(service.get("depends_on", {})) <= set(services)


def test_each_command_accepts_its_arguments() -> None:
    ours = [command[command.index("manage.py") + 1 :] for command in commands() if "manage.py" in command]
    assert len(ours) == 7
    for name, *arguments in ours:
        app = "django.core" if name == "migrate" else "sqlqueue_app"
        load_command_class(app, name).create_parser("manage.py", name).parse_args(arguments)


def test_image_runs_without_root_and_receives_signals() -> None:
    (text,) = texts("dockerfile")
    words = [line.split()[0] for line in text.splitlines() if line and not line.startswith("#")]
    assert words.index("USER") < words.index("CMD")
    assert 'CMD ["python",' in text


def test_systemd_unit_is_valid_and_hardened(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: apt-get install systemd")
    (text,) = texts("ini")
    unit = tmp_path / "shop-worker.service"
    # The program of the unit does not exist on this machine.
    unit.write_text(text.replace("/srv/shop/.venv/bin/python", sys.executable).replace("=/srv/shop", f"={tmp_path}"))

    verified = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")
    rated = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--no-pager", unit], capture_output=True, text=True, check=False
    )
    (exposure,) = re.findall(r"Overall exposure level for shop-worker.service: ([\d.]+)", rated.stdout)
    assert float(exposure) < MAX_EXPOSED


SETTINGS = """
SECRET_KEY = "examples"
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "sqlqueue_app"]
SQLQUEUE = {"ENDPOINTS": {"Sales": {"HANDLERS": []}}}
"""
# From Django 6.1 on the command "check" connects to every database: the servers of the page are not here.
RUN_CHECKS = "import django; django.setup(); from django.core import checks; print(checks.run_checks(databases=[]))"


@pytest.mark.parametrize("engine", ["postgresql", "mssql", "sqlite3"])
def test_checks_pass_with_each_documented_database(engine: str, tmp_path: Path) -> None:
    if engine == "mssql":
        pytest.importorskip("pyodbc", reason="mssql-django imports pyodbc, which needs unixODBC", exc_type=ImportError)
    (text,) = [block.text for block in blocks(DATABASES_PAGE) if block.kind == "python" and f'{engine}",' in block.text]
    (tmp_path / "settings_of_the_page.py").write_text(SETTINGS + text.replace("/srv/shop", str(tmp_path)))

    answer = subprocess.run(
        [sys.executable, "-c", RUN_CHECKS],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{ROOT}:{tmp_path}", "PATH": "", "DJANGO_SETTINGS_MODULE": "settings_of_the_page"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "[]\n", "")
