"""Write and read the Parquet files of a lake with Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from functools import reduce

from pyspark.sql import DataFrame, DataFrameReader, Observation, SparkSession, functions as sf

from sqlqueue_app.lake.columns import LakeTable
from sqlqueue_app.lake.data_files import PARQUET_OPTIONS

# Paths may contain wildcard characters, which must not be expanded.
_PATTERNS = "__globPaths__"
_WILDCARDS = frozenset("{}[]*?\\")
_MAX_IN_LIST = 1_000


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that Spark wrote: name, day of its folder, and the RowVersions in it, unordered."""

    name: str
    day: date
    row_versions: Sequence[int]


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The number of rows of a batch that cannot be parsed, and the range of their RowVersions."""

    count: int
    lowest: int
    highest: int


def write_readable(parsed: DataFrame, table: LakeTable, url: str) -> Unreadable:
    """Write the rows without a problem as Parquet, partitioned by day, and count the others, in one pass.

    `parsed` has the columns of the table, `day` and `problem`. Fails if the folder exists.
    """
    seen = Observation()
    bad = sf.when(sf.col("problem").isNotNull(), sf.col("row_version"))
    observed = parsed.observe(seen, sf.count(bad).alias("count"), sf.min(bad).alias("lowest"), sf.max(bad).alias("highest"))
    _write(observed.where("problem IS NULL"), table, url)
    found = seen.get
    return Unreadable(int(found["count"]), int(found["lowest"] or 0), int(found["highest"] or 0))


def write_unreadable(parsed: DataFrame, table: LakeTable, url: str) -> None:
    """Write the rows with a problem."""
    _write(parsed.where("problem IS NOT NULL"), table, url)


def _write(rows: DataFrame, table: LakeTable, url: str) -> None:
    chosen = rows.select(*table.names, "day")
    chosen.write.mode("error").partitionBy("day").options(**PARQUET_OPTIONS).parquet(url)


def read_files(session: SparkSession, table: LakeTable, base: str, urls: Sequence[str] = ()) -> DataFrame:
    """Read files of a table, partition columns included: everything below `base`, or only `urls` below it."""
    return _read(session.read.schema(table.full_ddl).option("basePath", base), urls or [base])


def _read(reader: DataFrameReader, urls: Sequence[str]) -> DataFrame:
    """Read each of the files or folders once."""
    literal = reader.option(_PATTERNS, "false")
    if _WILDCARDS.isdisjoint("".join(urls)):
        return literal.parquet(*urls)
    # Spark would replace each path with such a character by all paths.
    return reduce(DataFrame.unionAll, [literal.parquet(url) for url in urls])


def written_files(rows: DataFrame) -> list[WrittenFile]:
    """The files that contain these rows; `rows` comes from `read_files`."""
    each = rows.select(sf.col("_metadata.file_name").alias("name"), "day", "row_version").toArrow()
    found = each.group_by(["name", "day"], use_threads=False).aggregate([("row_version", "list")]).to_pydict()
    return [WrittenFile(*each) for each in zip(found["name"], found["day"], found["row_version_list"], strict=True)]


@dataclass(frozen=True, slots=True)
class CopiedRow:
    """The identity of a row in a file; None where unknown."""

    row_version: int
    native_id: str | None
    message_id: str | None
    unique_message_id: str | None


def copied_rows(session: SparkSession, table: LakeTable, base: str, url: str) -> list[CopiedRow]:
    """The rows in the files of a folder."""
    rows = read_files(session, table, base, [url])
    names = ("row_version", "native_id", "message_id", "unique_message_id")
    chosen = rows.select([sf.col(each) if each in table.names else sf.lit(None).cast("string").alias(each) for each in names])
    columns = chosen.toArrow().to_pydict()
    return [CopiedRow(*each) for each in zip(*(columns[each] for each in names), strict=True)]


def only_rows(session: SparkSession, rows: DataFrame, row_versions: Sequence[int]) -> DataFrame:
    """Filter rows of the data source by RowVersion."""
    if len(row_versions) <= _MAX_IN_LIST:
        return rows.where(sf.col("RowVersion").isin(list(row_versions)))
    wanted = session.createDataFrame([(each,) for each in row_versions], "RowVersion BIGINT")
    return rows.join(sf.broadcast(wanted), "RowVersion", "left_semi")


def without_text(rows: DataFrame, text: str) -> DataFrame:
    """Filter out rows of the data source whose headers contain the text; keeps rows without headers."""
    return rows.where(~sf.coalesce(sf.contains(sf.col("Headers"), sf.lit(text)), sf.lit(False)))


def combine_files(session: SparkSession, table: LakeTable, urls: Sequence[str], url: str) -> None:
    """Combine files of one folder into one file in a new folder. Fails if that exists."""
    rows = _of_one_folder(session, table, *urls)
    rows.coalesce(1).write.mode("error").options(**PARQUET_OPTIONS).parquet(url)


def rows_by_file(session: SparkSession, table: LakeTable, url: str) -> dict[str, int]:
    """The number of rows per file name in a folder."""
    rows = _of_one_folder(session, table, url)
    counted = rows.groupBy(sf.col("_metadata.file_name").alias("name")).count().collect()
    return {row["name"]: int(row["count"]) for row in counted}


def _of_one_folder(session: SparkSession, table: LakeTable, *urls: str) -> DataFrame:
    """Read files without partition columns."""
    return _read(session.read.schema(table.ddl), urls)


def row_versions_in(files: Sequence[DataFrame], rows: DataFrame) -> list[int]:
    """The RowVersions of source rows that the files already contain, compared by RowVersion and id.

    `files` come from `read_files`, one per table.
    """
    if not files:
        return []
    known = reduce(DataFrame.unionAll, [each.select("row_version", "native_id") for each in files])
    same = (sf.col("RowVersion") == sf.col("row_version")) & sf.col("Id").eqNullSafe(sf.col("native_id"))
    found = rows.select("RowVersion", "Id").join(known, same, "left_semi").select("RowVersion")
    numbers: list[int] = found.toArrow().to_pydict()["RowVersion"]
    return numbers
