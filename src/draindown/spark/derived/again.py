"""What a derive batch reads again of its sources, and the session settings by its size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from draindown.lake.table import Table
from draindown.spark.derived.scope import Touched
from draindown.spark.derived.standing import Standing
from draindown.spark.derived.touched import Work
from draindown.spark.targets.delta_target import Held
from draindown.spark.targets.pruning import Pruning
from draindown.spark.tuning import PARTITIONS, Size


@dataclass(frozen=True)
class Again:
    """What is read again of a source table: the rows that `pruning` admits, in files of this `size`
    by their log.

    `files`: the number of these files, and of all that the table has.
    """

    rows: DataFrame
    pruning: Pruning
    size: Size
    files: tuple[int, int]

    @property
    def possible(self) -> DataFrame:
        """The rows that may belong to touched keys."""
        rows = self.rows
        for condition in self.pruning.conditions(rows.schema):
            rows = rows.where(condition)
        return rows


def again_of(work: Work, at: int) -> Again:
    """Return what is read again of source table number `at`. Its log is read once, and so are its
    files' statistics.
    """
    table, rows = work.batch.slice.tables[at], work.sources[at]
    if isinstance(work.scope, Standing) and not work.scope.went.number:
        nothing = rows.where(F.lit(False))
        return Again(nothing, Pruning(), Size(0, 0), (0, len(Table(table.path, table.at).files())))
    relation, scope = work.resolved.kind.relations[at], work.scope
    possible = relation.source_pruning(scope.pruning)
    if isinstance(scope, Touched) and scope.earliest is not None:
        possible = replace(possible, since=relation.since(rows, scope.earliest))
    files = Table(table.path, table.at).files([*possible.values, *possible.ranges, *possible.since])
    pruning = possible.narrowed(rows.schema, files)
    found = pruning.files(rows.schema, files)
    size = Size(
        sum(file.get("num_records") or 0 for file in found),
        sum(file["size_bytes"] for file in found),
    )
    return Again(rows, pruning, size, (len(found), len(files)))


def settings_of(
    spark: SparkSession, work: Work, held: Held | None, read: Sequence[Again]
) -> Mapping[str, str]:
    """Return the session settings by the size of what is read again and of what it is compared
    with.
    """
    tuning = work.batch.tuning
    again = Size(sum(one.size.rows for one in read), sum(one.size.bytes for one in read))
    size = None if held is None else held.size
    tasks, partitions = spark.sparkContext.defaultParallelism, int(str(spark.conf.get(PARTITIONS)))
    weight = again.bytes + (size.bytes if size else 0)
    found = dict(tuning.evaluation(again.rows, size.rows if size else 0)) | dict(
        tuning.shuffling(weight, tasks, partitions)
    )
    found |= dict(tuning.adapting(weight)) | dict(
        tuning.estimating(size, *(one.size for one in read))
    )
    return found | dict(tuning.writing(size, again, work.batch.flow.maintenance.copy_on_write))
