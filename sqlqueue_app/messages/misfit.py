"""The error that carries the place of a wrong value out of a body; it never leaves the serializers."""

from __future__ import annotations


class Misfit(Exception):
    """A value does not fit; ``path`` grows from the inside to the outside while the error passes."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = []

    def __str__(self) -> str:
        where = "".join(reversed(self.path)).lstrip(".")
        return f"{where}: {self.reason}" if where else self.reason
