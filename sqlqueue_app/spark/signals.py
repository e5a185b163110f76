"""Signals that end this process are its own affair: the Java that it starts, and the Python that Java starts, do not get them.

A terminal sends Ctrl-C to its whole foreground group, systemd sends SIGTERM to all of a service. Java would end at once, in the
middle of what this process is about to finish. A signal that is blocked in the thread that starts a child stays blocked in it and
in all of its children, whatever handlers they set; Java unblocks it, but for the option -Xrs. They end when their standard input
does, which is also how they learn that this process was killed.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

JAVA_OPTION: Final = "-Xrs"


@contextmanager
def kept_from_children() -> Iterator[None]:
    """A context in whose thread, any one, children are started that get no SIGINT and no SIGTERM. Does nothing on Windows.

    Other threads of this process take such a signal meanwhile; where there are none it comes at the end of the context.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
