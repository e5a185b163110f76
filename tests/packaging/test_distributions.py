"""Both distributions for the package index are complete and have well-formed metadata."""

from __future__ import annotations

import re
import sys
import tarfile
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

from tests.packaging.conftest import run
from tests.support.databases import ROOT


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution, and the wheel that is built from it."""
    target = tmp_path_factory.mktemp("distributions")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", target, ROOT, cwd=ROOT)
    return target


@pytest.fixture(scope="module")
def metadata(distributions: Path) -> Message:
    (wheel,) = distributions.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(name))


def test_package_index_accepts_both_distributions(distributions: Path) -> None:
    files = sorted(distributions.iterdir())
    assert [file.suffix for file in files] == [".whl", ".gz"]

    shown = run(sys.executable, "-m", "twine", "--no-color", "check", "--strict", *files, cwd=ROOT)

    assert shown.count("PASSED") == 2


def test_licence_is_that_of_django(distributions: Path, metadata: Message) -> None:
    assert metadata["License-Expression"] == "BSD-3-Clause"
    assert metadata["Author"] == "The sqlqueue authors"
    (source,) = distributions.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        assert any(name.count("/") == 1 and name.endswith("/LICENSE") for name in archive.getnames())


def test_description_has_no_relative_links(metadata: Message) -> None:
    description = str(metadata.get_payload())

    assert "# sqlqueue" in description
    assert "guarantees" in description
    assert re.findall(r"!?\[[^\]]*\]\((?!https?://)[^)]*\)", description) == []


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 120
