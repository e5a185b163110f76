"""Values for the placeholders of translated texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils.formats import number_format


class Words(dict[str, str]):
    """Values by the names of placeholders; a question mark for what is not there. Whole numbers are in the form of the language."""

    def __init__(self, subject: str, details: object) -> None:
        known: Mapping[str, Any] = details if isinstance(details, dict) else {}
        super().__init__({str(name): _in_words(value) for name, value in known.items()})
        self["subject"] = subject

    def __missing__(self, name: str) -> str:
        return "?"


def _in_words(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(number_format(value, decimal_pos=0, force_grouping=True))
    return str(value)
