"""The package works without Django, and exports its public names."""

from __future__ import annotations

import subprocess
import sys

import sqlqueue_app.messages as messages


def test_importing_messages_does_not_import_django() -> None:
    code = (
        "import pkgutil, importlib, sys, sqlqueue_app.messages as m\n"
        "for found in pkgutil.iter_modules(m.__path__): importlib.import_module(f'{m.__name__}.{found.name}')\n"
        "assert 'django' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def test_exports_are_callable() -> None:
    assert messages.__all__ == ["QueueAddress", "read_headers", "write_headers", "parse_time", "format_time"]
    assert all(callable(getattr(messages, name)) for name in messages.__all__)
