"""Settings that this version recognises before it can keep their promise: the one table of them.

The version that brings a setting to life deletes its entry, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class NotYet:
    """A key whose values, but for those in `honoured`, do nothing yet; `refused` where that would break a promise."""

    honoured: tuple[object, ...]
    refused: bool = False


NOT_YET: Final[Mapping[tuple[str, ...], NotYet]] = MappingProxyType({})
