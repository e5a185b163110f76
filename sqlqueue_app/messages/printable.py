"""Text of somebody else's for logs and terminals: it is read there, and does nothing."""

from __future__ import annotations

import re
from typing import Final

# Control characters, those that turn the direction of text among them: they would act on the terminal instead of being read.
_UNSAFE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def terminal_text(text: str) -> str:
    """The text with control characters written out as escapes; line breaks and tabs stay."""
    return _UNSAFE.sub(lambda found: f"\\x{ord(found[0]):02x}" if ord(found[0]) < 256 else f"\\u{ord(found[0]):04x}", text)


def terminal_line(text: str) -> str:
    """The same, on one line."""
    return terminal_text(text).replace("\n", "\\n").replace("\t", " ")


def json_text(text: str) -> str:
    """A JSON text with such characters as escapes of JSON."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
