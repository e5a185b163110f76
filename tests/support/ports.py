"""A port of one's own."""

from __future__ import annotations

import contextlib
import random
import socket

HOST = "127.0.0.1"
# Below those that a system gives to outgoing connections, or to whoever asks for any (Linux: from 32768 on; IANA: from 49152 on):
# a server that is not there yet, or that is stopped and started again, would find such a port taken.
PORTS = range(20_000, 32_000)
TRIES = 100


def free_port() -> int:
    """A port of the loopback interface that nobody listens on, another one for each caller; nobody is given it meanwhile.

    RuntimeError where none is found.
    """
    # not the seeded numbers of the test run: two runs with one seed would ask for the same
    for port in random.SystemRandom().sample(PORTS, TRIES):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
            return port
    raise RuntimeError(f"none of {TRIES} ports from {PORTS[0]} to {PORTS[-1]} is free")
