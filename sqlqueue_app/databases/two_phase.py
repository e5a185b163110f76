"""The names of branches of two-phase commit, as they stand on a server among those of others."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from typing import Final

# Other databases either know no such thing, or none that any session may end (design 6.5).
CAN_PREPARE: Final = ("postgresql",)

_GID: Final = re.compile(r"sqlqueue-(?P<coordinator>[0-9a-f]{32})-(?P<transaction>[0-9a-f]{32})-(?P<number>[0-9]+)")


@dataclass(frozen=True, slots=True)
class BranchId:
    """The global transaction id of one branch. `str` gives the text that a server keeps, 90 of its 199 characters at most.

    `coordinator` names the database of the queues, whose log decides; `number` tells apart the branches of one transaction, which
    may be on the same server.
    """

    coordinator: uuid.UUID
    transaction: uuid.UUID
    number: int

    def __str__(self) -> str:
        return f"sqlqueue-{self.coordinator.hex}-{self.transaction.hex}-{self.number}"

    @property
    def literal(self) -> str:
        """The id as an SQL literal; there is nothing in it to escape."""
        return f"'{self}'"

    @classmethod
    def parse(cls, gid: str) -> BranchId | None:
        """The branch of this text; None for what somebody else has prepared."""
        if (match := _GID.fullmatch(gid)) is None:
            return None
        return cls(uuid.UUID(match["coordinator"]), uuid.UUID(match["transaction"]), int(match["number"]))
