"""How files of messages are written, so that they can be searched: options of Spark's Parquet writer, measured with the search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ROWS_OF_A_GROUP: Final = 20_000
"""A group is the least that a search reads of a column. Of headers and body that is 30 MB, in 0.02 s.

Rows stand in the order of the queue, which is nearly that of time: a search for some hours then leaves out nearly all groups, also
in a file that was put together of others. To sort them besides would cost a batch its memory.
"""

_IDS: Final = ("message_id", "conversation_id")
_LONG: Final = ("headers", "body")
_SELDOM_SHARED: Final = (*_IDS, "native_id", "correlation_id", "related_to", *_LONG)

PARQUET_OPTIONS: Final[Mapping[str, str]] = {
    "compression": "zstd",
    "parquet.block.row.count.limit": str(ROWS_OF_A_GROUP),
    # A bloom filter of 32 KiB for each group: an id is looked for in one group of a hundred. There is none where a dictionary holds
    # all values, which DuckDB does not look into; and what no two rows share costs time as a dictionary and saves nothing.
    **{f"parquet.bloom.filter.enabled#{name}": "true" for name in _IDS},
    **{f"parquet.bloom.filter.expected.ndv#{name}": str(ROWS_OF_A_GROUP) for name in _IDS},
    **{f"parquet.enable.dictionary#{name}": "false" for name in _SELDOM_SHARED},
    # Nobody looks for a body by the first and the last one of a group.
    **{f"parquet.column.statistics.enabled#{name}": "false" for name in _LONG},
}
"""For `DataFrameWriter.options`; of tables of messages."""
