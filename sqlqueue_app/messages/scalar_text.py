"""Single values as text, in the forms that JSON and XML of .NET share (transport reference §6.5, §18).

Everything raises Misfit for what .NET could not hold.
"""

from __future__ import annotations

import base64
import math
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Final

from sqlqueue_app.messages.misfit import Misfit

# Beyond this size a Decimal keeps its exponent; written out, it could fill the memory.
_PLAIN_DECIMAL: Final = 64


def bool_text(value: bool) -> str:
    """``true`` or ``false``."""
    return "true" if value else "false"


def float_text(value: float) -> str:
    """The shortest digits that give the same number."""
    if not math.isfinite(value):
        raise Misfit(f"no body has a number for {value!r}")
    return float.__repr__(value)


def integer_text(value: int) -> str:
    """All digits."""
    try:
        return int.__repr__(value)
    except ValueError:
        raise Misfit(f"the number has more digits than Python converts ({value.bit_length()} bits)") from None


def decimal_text(value: Decimal) -> str:
    """All digits, also zeros at the end."""
    if not value.is_finite():
        raise Misfit(f"no body has a number for {value!r}")
    exponent = value.as_tuple().exponent
    plain = isinstance(exponent, int) and -_PLAIN_DECIMAL <= exponent <= _PLAIN_DECIMAL
    return format(value, "f") if plain else str(value)


def datetime_text(value: datetime) -> str:
    """ISO 8601, with ``Z`` or the offset where the time has a zone."""
    offset = value.utcoffset()
    if offset is None:
        return value.isoformat()
    if offset % timedelta(minutes=1):
        # ISO 8601 of .NET knows no seconds in an offset.
        value = value - offset
        offset = timedelta(0)
    naive = value.replace(tzinfo=None).isoformat()
    if not offset:
        return f"{naive}Z"
    minutes = abs(offset) // timedelta(minutes=1)
    return f"{naive}{'-' if offset < timedelta(0) else '+'}{minutes // 60:02}:{minutes % 60:02}"


def date_text(value: date) -> str:
    """``2026-11-20``."""
    return value.isoformat()


def time_text(value: time) -> str:
    """``10:11:12``."""
    if value.tzinfo is not None:
        raise Misfit(f"the time {value!r} has a time zone, which no receiver would understand; use a datetime")
    return value.isoformat()


def bytes_text(value: bytes | bytearray | memoryview) -> str:
    """Base64."""
    return base64.b64encode(value).decode("ascii")
