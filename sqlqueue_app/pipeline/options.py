"""What a run is asked to do: the settings, and the arguments that win over them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlqueue_app.conf import PipelineSettings, Settings
from sqlqueue_app.conf.kinds import has_password
from sqlqueue_app.instances import managed_alias
from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.operations.known_queues import QueueKind, address_book_of, known_queues, name_of_queue
from sqlqueue_app.tables.queue import QueueTable, queue_table


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions:
    """A run, with everything said. Durations are seconds."""

    lake: str
    master: str = "local[*]"
    continuous: bool = False
    peek_only: bool = False
    keep_days: int | None = None
    compact: bool = False
    batch_size: int = 500_000
    every_seconds: float = 10.0
    spark: Mapping[str, str] = field(default_factory=dict, repr=False)

    def shown(self) -> dict[str, Any]:
        """What the row of the run keeps; no settings of Spark, for they hold keys."""
        return {
            "continuous": self.continuous,
            "peek_only": self.peek_only,
            "keep_days": self.keep_days,
            "compact": self.compact,
            "batch_size": self.batch_size,
        }


def options_of(settings: Settings, **given: Any) -> PipelineOptions:
    """The options of the settings, but for what is given and not None. ConfigurationError where nothing names the lake."""
    configured = settings.pipeline or PipelineSettings()
    chosen = {
        "lake": configured.lake,
        "master": configured.master,
        "peek_only": configured.peek_only,
        "keep_days": configured.keep_days,
        "batch_size": configured.batch_size,
        "every_seconds": configured.every_seconds,
        "spark": dict(configured.spark),
        **{name: value for name, value in given.items() if value is not None},
    }
    if not chosen["lake"]:
        raise ConfigurationError(
            'where the lake is was not said: give --lake PATH, or set SQLQUEUE["PIPELINE"]["LAKE"] to a folder or a URL'
        )
    if has_password(chosen["lake"]):
        raise ConfigurationError(
            "the URL of the lake holds a password, which would stand in the rows of all runs: give the keys of the store to Spark, "
            'as spark.hadoop.fs.s3a.secret.key in SQLQUEUE["PIPELINE"]["SPARK"], or by the environment'
        )
    return PipelineOptions(**chosen)


@dataclass(frozen=True, slots=True)
class PipelineQueue:
    """A queue that the pipeline reads: its name in the lake, and its table."""

    name: str
    table: QueueTable


def audit_queues(settings: Settings) -> list[PipelineQueue]:
    """Those of the settings of the pipeline, else of every endpoint; each table once."""
    return _queues(settings, (settings.pipeline or PipelineSettings()).audit_queues, QueueKind.AUDIT)


def error_queues(settings: Settings) -> list[PipelineQueue]:
    """As `audit_queues`."""
    return _queues(settings, (settings.pipeline or PipelineSettings()).error_queues, QueueKind.ERROR)


def check_aliases(settings: Settings) -> str:
    """The alias of the queues and of the manifest, which must be one. ConfigurationError where they are two."""
    managed = managed_alias()
    if managed != settings.database:
        raise ConfigurationError(
            f"the queues are in the database {settings.database!r} and the tables of the app in {managed!r}, but the pipeline "
            'writes both in one transaction: add "sqlqueue_app.routers.SqlQueueRouter" to DATABASE_ROUTERS, and migrate'
        )
    return managed


def _queues(settings: Settings, addresses: tuple[str, ...] | None, kind: QueueKind) -> list[PipelineQueue]:
    book = address_book_of(settings)
    if addresses is None:
        found = [each.address for each in known_queues(settings) if each.kind is kind]
    else:
        found = [book.parse(text) for text in addresses]
    return [PipelineQueue(name_of_queue(book, each), queue_table(settings.database, each)) for each in dict.fromkeys(found)]
