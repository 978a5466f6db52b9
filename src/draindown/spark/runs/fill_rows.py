"""The rows that a fill sends, as portions: those of a version of the table, and what earlier
versions had.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from draindown.config.sinks import FlowSink
from draindown.runs.request import Request
from draindown.sinks.port import FATE
from draindown.spark.frames import persisted
from draindown.spark.sql import try_eval
from draindown.spark.targets.outlets import keyed_by_origin, refused_rows
from draindown.spark.targets.table_files import TableFiles
from draindown.spark.targets.version_changes import HashedRows, changed, deleted


class Portions(Protocol):
    """Rows with FATE that are sent one portion after the other."""

    portions: int

    def portion(self, number: int) -> DataFrame:
        """Return the rows of a portion, from 0."""


@dataclass(frozen=True)
class FillRows:
    """Reads what a sink gets from the flow's table, or from its quarantine."""

    request: Request
    sink: FlowSink
    spark: SparkSession

    def keyed(self, rows: DataFrame) -> DataFrame:
        """Return rows of the table with the keys that the sink knows, or of the quarantine as it
        gets them.
        """
        if self.sink.is_of_refused:
            return refused_rows(rows)
        return rows if self.request.declared.target.row_keys else keyed_by_origin(rows)

    def every(self, files: TableFiles) -> Portions:
        """Return all rows as upserts."""
        return _Upserts(self, files)

    def compared(
        self,
        bases: Sequence[int],
        version: int,
        keys: Sequence[str],
        kept: ExitStack,
        *,
        sent: Sequence[str] | None,
    ) -> list[Portions]:
        """Return what differs between earlier versions and `version`, deletes first: a unique index
        may guard values.

        `sent`: the columns of the sink, which has the rows of the only base that match its
        condition. None: it may have any row of any base, and gets all rows of `version` besides; so
        only keys that are gone are returned. Found once, and persisted until `kept` closes.
        """
        table = self._matching(self._version(version))
        every = [self._version(base) for base in bases]
        every = [
            rows for rows in every if set(keys) <= set(rows.columns)
        ]  # of others the sink knows no key
        if not every:
            return []
        found = (
            deleted(every, table, keys)
            if sent is None
            else changed(self._matching(every[0]), table, keys, sent)
        )
        kept.enter_context(persisted(found))
        return [HashedRows(found.where(F.col(FATE) == fate), keys) for fate in ("delete", "upsert")]

    def _version(self, version: int) -> DataFrame:
        path = self.request.layout.tables.target.path
        return self.keyed(self.spark.read.format("delta").option("versionAsOf", version).load(path))

    def _matching(self, rows: DataFrame) -> DataFrame:
        if self.sink.where is None:
            return rows
        return rows.where(F.coalesce(try_eval(self.spark, self.sink.where), F.lit(False)))


class _Upserts:
    """The rows of files as upserts."""

    def __init__(self, source: FillRows, files: TableFiles) -> None:
        self._source, self._files = source, files
        self.portions = files.portions

    def portion(self, number: int) -> DataFrame:
        """Return the rows of a portion, from 0."""
        return self._source.keyed(self._files.portion(number)).withColumn(FATE, F.lit("upsert"))
