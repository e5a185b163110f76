"""Which rows of a queue stand in the files of a lake already."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 -- as all of Spark's own documentation has it


def rows_that_stand_in(files: Sequence[DataFrame], rows: DataFrame) -> list[int]:
    """The numbers of those rows of the data source of which the files hold one of the same number and id.

    `files` come from `read_files`, one of each table.
    """
    if not files:
        return []
    known = reduce(DataFrame.unionAll, [each.select("row_version", "native_id") for each in files])
    same = (F.col("RowVersion") == F.col("row_version")) & F.col("Id").eqNullSafe(F.col("native_id"))
    found = rows.select("RowVersion", "Id").join(known, same, "left_semi").select("RowVersion")
    numbers: list[int] = found.toArrow().to_pydict()["RowVersion"]
    return numbers
