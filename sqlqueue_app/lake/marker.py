"""The marker file of a lake, which says that it is one: in which format, with which id, written by which version."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Final

NAME: Final = "_sqlqueue.json"
FORMAT: Final = 1
"""What this version writes, and the newest that it reads."""


@dataclass(frozen=True, slots=True)
class LakeMarker:
    """What stands in the file."""

    format: int
    id: uuid.UUID
    written_by: str

    def text(self) -> str:
        """The file."""
        return json.dumps({"format": self.format, "id": str(self.id), "written_by": self.written_by}, indent=2) + "\n"


def read_marker(text: str) -> LakeMarker:
    """The marker that the text of its file is. ValueError, in words, for none, and for a format that this version does not know."""
    try:
        document = json.loads(text)
        found = LakeMarker(int(document["format"]), uuid.UUID(document["id"]), str(document.get("written_by", "")))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"its {NAME} is not what a lake of sqlqueue has: {error}") from None
    if not 1 <= found.format <= FORMAT:
        raise ValueError(
            f"it has the format {found.format}, written by sqlqueue {found.written_by or '?'}, and this version knows formats up "
            f"to {FORMAT}: upgrade sqlqueue here, or choose another lake"
        )
    return found
