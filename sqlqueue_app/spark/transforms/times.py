"""The instants in headers, read by the rule of `messages.times.parse_time`, but without Python."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as sf

_USUAL: Final = "yyyy-MM-dd HH:mm:ss:SSSSSS X"
# Positions count, separators do not. There is no year 0.
_DIGITS: Final = r"(?s)\A(?!0000)([0-9]{4}).([0-9]{2}).([0-9]{2}).([0-9]{2}).([0-9]{2}).([0-9]{2}).([0-9]{6})..\z"
_CASTABLE: Final = "$1-$2-$3T$4:$5:$6.$7Z"


def instant_of(text: Column) -> Column:
    """The instant of a wire timestamp; NULL for NULL and for all other text."""
    # The pattern alone would take other zones; with this length and end every field has its place.
    is_usual = (sf.length(text) == 28) & text.endswith(" Z") & ~text.startswith("0000")
    usual = sf.when(is_usual, sf.try_to_timestamp(text, sf.lit(_USUAL)))
    unusual = sf.when(text.rlike(_DIGITS), sf.regexp_replace(text, _DIGITS, _CASTABLE).try_cast("timestamp"))
    return sf.coalesce(usual, unusual)


def seconds_between(begin: Column, end: Column) -> Column:
    """From one instant to another in seconds, negative where the end comes first; NULL where one is."""
    return (sf.unix_micros(end) - sf.unix_micros(begin)) / sf.lit(1e6)
