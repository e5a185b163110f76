"""Test databases are in memory if there is room, otherwise on disk."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.support import directories


@pytest.mark.parametrize(("room", "in_memory"), [(0, True), (1 << 62, False)])
def test_disk_is_used_if_memory_has_no_room(room: int, in_memory: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, disk = tmp_path / "memory", tmp_path / "disk"
    memory.mkdir()
    disk.mkdir()
    monkeypatch.setattr(directories, "MEMORY", memory)
    monkeypatch.setattr(directories, "ROOM", room)
    monkeypatch.setattr(tempfile, "tempdir", str(disk))

    made = directories.directory_for_databases("for-a-test-")

    assert made.parent == (memory if in_memory else disk)


def test_disk_is_used_without_a_file_system_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directories, "MEMORY", tmp_path / "missing")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    assert directories.directory_for_databases("for-a-test-").parent == tmp_path
