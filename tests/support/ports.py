"""Free ports for tests."""

from __future__ import annotations

import contextlib
import random
import socket

HOST = "127.0.0.1"
# Below the ephemeral ports (Linux: from 32768 on; IANA: from 49152 on), which the system gives to outgoing connections:
# a server that starts later, or is stopped and started again, could find such a port taken.
PORTS = range(20_000, 32_000)
MAX_ATTEMPTS = 100


def free_port() -> int:
    """A random unused port of the loopback interface, from a range that the system does not give to other programs.

    Raises RuntimeError if none is found.
    """
    # not the seeded generator of the test run: two runs with the same seed would try the same ports
    for port in random.SystemRandom().sample(PORTS, MAX_ATTEMPTS):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
            return port
    raise RuntimeError(f"none of {MAX_ATTEMPTS} ports from {PORTS[0]} to {PORTS[-1]} is free")
