"""Hosts that vanish without a word: what a connection of PostgreSQL is told, so that either side gives the other up in time."""

from __future__ import annotations

from typing import Any, Final

ADVISED_SECONDS: Final = 10
_KEEPALIVES: Final = ("keepalives_idle", "keepalives_interval", "keepalives_count")


def options_for(seconds: int = ADVISED_SECONDS) -> dict[str, Any]:
    """`OPTIONS` of a PostgreSQL alias with which either side of a connection gives up a lost other one after about so many seconds.

    Half of them nothing is said before the first probe. `options` asks the server for the same, for these sessions alone.
    """
    idle = max(1, seconds // 2)
    interval, count = max(1, (seconds - idle) // 3), 3
    ours = {"keepalives_idle": idle, "keepalives_interval": interval, "keepalives_count": count, "tcp_user_timeout": seconds * 1000}
    theirs = {f"tcp_{name}" if name in _KEEPALIVES else name: value for name, value in ours.items()}
    return {
        "connect_timeout": max(2, seconds // 2),
        **ours,
        "options": " ".join(f"-c {key}={value}" for key, value in theirs.items()),
    }


def seconds_until_given_up(idle: int, interval: int, count: int, user_timeout_ms: int) -> float:
    """After how many seconds a kernel with these settings gives up a silent other side, at most, while it has nothing to send.

    With a user timeout the number of probes does not matter: the first one after it that finds no answer is the last (Linux).
    """
    if not user_timeout_ms:
        return idle + interval * count
    return max(idle, user_timeout_ms / 1000) + interval
