"""Run the examples of one page in the project in the current folder: `python -m tests.docs.play PAGE`.

Python blocks that begin with a file name are appended to that file; the others run in order in one namespace.
Commands of console blocks run in order; the lines below a command are its expected output, where `...` matches anything.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import django

from tests.support.doc_pages import Block, blocks

SECONDS = 300


def play(page: Path) -> None:
    """Run all blocks; raises at the first that does not behave as documented."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.reason is not None or not block.is_example:
            continue
        sys.stdout.write(f"--- {block.place}\n")
        if block.kind == "console":
            _type_in(block)
        elif block.file is not None:
            _append(Path(block.file), block.text)
        else:
            django.setup()
            exec(compile("\n" * block.line + block.text, str(block.page), "exec"), namespace)


def _append(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as stream:
        stream.write("\n" + text)


def _type_in(block: Block) -> None:
    for command, expected in _commands(block.text):
        words = re.sub(r"^python ", f"{sys.executable} ", command)
        code, output = _run(words)
        sys.stdout.write(output)
        if code != 0:
            raise AssertionError(f"{block.place}: {command!r} ended with exit code {code}")
        for line in expected:
            pattern = ".*".join(map(re.escape, line.strip().split("...")))
            if not re.search(pattern, output):
                raise AssertionError(f"{block.place}: {command!r} does not print {line!r}")


def _run(command: str) -> tuple[int, str]:
    """Exit code and output of a shell command; on a timeout its whole process group is killed."""
    shell = subprocess.Popen(
        command,
        shell=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=_environment(),
        start_new_session=True,
    )
    with shell:
        try:
            output, _ = shell.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            # killing only the shell would leave its children, which keep the pipe open
            os.killpg(shell.pid, signal.SIGKILL)
            raise AssertionError(f"{command!r} has not ended within {SECONDS} s") from None
    return shell.returncode, output


def _commands(text: str) -> list[tuple[str, list[str]]]:
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            # a comment after two spaces and a hash is for the reader
            found.append((re.sub(r"\s{2,}# .*", "", line[2:]), []))
        elif line.strip() and found:
            found[-1][1].append(line)
    return found


def _environment() -> dict[str, str]:
    # a user's shell has no settings of this checkout, but the package must be importable
    return {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    play(Path(sys.argv[1]))
