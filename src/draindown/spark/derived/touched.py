"""The first half of a derive batch: the keys that its changes touch, and the account of its
input.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from draindown.lake.home import FlowHome
from draindown.ledger.inputs import Input
from draindown.ledger.rows import BatchRow
from draindown.spark.derived import history, images, notes, recompute, valid_at
from draindown.spark.derived.batch import DeriveBatch, Versions
from draindown.spark.derived.images import IMAGES, NET, SIGN
from draindown.spark.derived.kind import Kind, Relation, key_names
from draindown.spark.derived.late import LATE, Late, Sieve
from draindown.spark.derived.resolve import Resolved
from draindown.spark.derived.scope import Bucket, Everything, Scope, Touched, pruning_of
from draindown.spark.frames import persisted
from draindown.spark.sql import quoted


@dataclass(frozen=True)
class Work:
    """A batch whose keys are known.

    `row`: the ledger row with the account of its input. `read`: the same by table. `came`: rows
    that came to the bucket's keys, less those that went, a row counted for each of its keys.
    `late`: the late rows of each table that has some in the bucket. `netted`: the images of each
    source's changes; of a fill none.
    """

    batch: DeriveBatch
    sources: Sequence[DataFrame]
    resolved: Resolved
    scope: Scope
    row: BatchRow
    read: Sequence[Input]
    came: int
    late: Sequence[Late]
    netted: Sequence[DataFrame] = ()

    @property
    def scope_keys(self) -> Sequence[str]:
        """The result's columns whose values are recomputed together."""
        return self.resolved.kind.scope_keys

    @property
    def row_keys(self) -> Sequence[str]:
        """The result's columns that name one of its rows."""
        return self.resolved.kind.row_keys


def touched(
    sieves: Sequence[Sieve],
    batch: DeriveBatch,
    rows: Sequence[DataFrame],
    sources: Sequence[DataFrame],
    resolved: Resolved,
    kept: ExitStack,
) -> Work:
    """Find the keys to recompute, and count the images of the input. `rows`: those of `sources`,
    and late ones.
    """
    piece, kind = batch.slice, resolved.kind
    changed = [
        _changed(batch.writer.layout, *one) for one in zip(sieves, piece.tables, rows, strict=True)
    ]
    looked = [_late(*one, batch, kept) for one in zip(sieves, kind.relations, changed, strict=True)]
    late, numbers = [one for one, _ in looked if one is not None], [number for _, number in looked]
    if piece.is_fill:
        whole = [_near(piece.bucket, *pair) for pair in zip(kind.relations, sources, strict=True)]
        scope = Everything(piece.bucket, piece.bucket.pruning(kind.scope_keys))
        return Work(batch, sources, resolved, scope, *_counted(batch, kind, whole, numbers), late)
    netted = [
        images.net(sieve.images(images_of, now), used, changes=table.changes)
        for sieve, table, images_of, now, used in zip(
            sieves, piece.tables, changed, rows, resolved.used, strict=True
        )
    ]
    for one in netted:
        kept.enter_context(persisted(one))
    row, read, came = _counted(batch, kind, netted, numbers)
    keys = recompute.touched(kind, netted, piece.bucket, sources)
    kept.enter_context(persisted(keys))
    named = [
        F.col(own).alias(name) for own, name in zip(key_names(kind), kind.scope_keys, strict=True)
    ]
    # a replay reads rows as they are now, whose times the changes that it repeats don't show
    is_bounded = kind.asked is not None and batch.writer.ledger_kind == "drain"
    earliest = valid_at.earliest(keys) if is_bounded else None
    found = Touched(keys, *pruning_of(keys.select(*named), kind.scope_keys), earliest)
    row = replace(row, recomputed=found.number)
    notes.amplified(batch, kind, row, netted, sources)
    return Work(batch, sources, resolved, found, row, read, came, late, netted)


def _near(bucket: Bucket, relation: Relation, source: DataFrame) -> DataFrame:
    """Return the rows of a source as images that came, all that may count in the bucket."""
    rows = source if bucket.range is None else source.where(relation.near(bucket.range))
    return rows.withColumns({NET: F.lit(1), IMAGES: F.lit(1).cast("bigint")})


def _changed(layout: FlowHome, sieve: Sieve, table: Versions, rows: DataFrame) -> DataFrame:
    """Return the images of a table's changes; of a fill, all rows. A slice may have no versions of
    a table.

    The feed has the columns of the newest version, of which the version that is read may lack some.
    Raises TerminalError `source-replaced` if it is the newest that lacks some: Delta reads no
    earlier changes then.
    """
    if table.start is None:
        return rows.withColumn(SIGN, F.lit(1))
    if table.is_only_read:
        return rows.where(F.lit(False)).withColumn(SIGN, F.lit(1))
    found = images.between(sieve.spark, table.path, table.start, table.until, sieve.own)
    if gone := [name for name in rows.columns if name not in found.columns]:
        raise history.dropped(layout, table.path, table.until, gone)
    return found.select(*map(quoted, rows.columns), SIGN)


def _late(
    sieve: Sieve, relation: Relation, changed: DataFrame, batch: DeriveBatch, kept: ExitStack
) -> tuple[Late | None, int]:
    """Return the late rows among the images of a table, of the batch's bucket, and how many of them
    are left out.

    None without any. A replay has none: the batch that it repeats kept them.
    """
    found = (
        sieve.late(changed, fill=batch.slice.is_fill)
        if batch.writer.ledger_kind == "drain"
        else None
    )
    if found is None:
        return None, 0
    found = found.where(batch.slice.bucket.has(relation.home()))
    kept.enter_context(persisted(found))
    row = found.agg(F.count("*").alias("all"), F.count_if(LATE).alias("late")).first()
    assert row is not None  # an aggregate without groups has one row
    return Late(sieve, relation, found) if row["all"] else None, int(row["late"])


def _counted(
    batch: DeriveBatch, kind: Kind, netted: Sequence[DataFrame], late: Sequence[int]
) -> tuple[BatchRow, list[Input], int]:
    """Return the ledger row with the account of the input, it by table, and `Work.came`.

    Counted are the images of the batch's bucket. `late`: the number of those that are left out, by
    table.
    """
    piece, inputs, used, came = batch.slice, list[Input](), 0, 0
    nothing_decided = piece.decided[0] == piece.decided[1]
    for table, relation, rows, left_out in zip(
        piece.tables, kind.relations, netted, late, strict=True
    ):
        found = (
            (0, 0, 0)
            if table.is_only_read and nothing_decided
            else _images(relation, rows, piece.bucket)
        )
        inputs.append(
            Input(table.unit or table.path, *table.pinned, table.bytes, found[0] + left_out)
        )
        used, came = used + found[1], came + found[2]
    records = sum(one.records for one in inputs)
    row = batch.ledger_row(
        "derive",
        slice=piece.number,
        inputs=len(inputs),
        bytes=sum(one.bytes for one in inputs),
        records=records,
        late=sum(late),
        used=used,
        unused=records - sum(late) - used,
    )
    return row, inputs, came


def _images(relation: Relation, netted: DataFrame, bucket: Bucket) -> tuple[int, int, int]:
    """Return the images of a table that are counted in a bucket, how many the query sees, and the
    part of `came`.
    """
    is_home = bucket.has(relation.home())
    sums = {
        "records": F.when(is_home, F.col(IMAGES)),
        "used": F.when(is_home & F.col(NET).cast("boolean") & relation.belongs(), F.col(IMAGES)),
        "came": F.col(NET) * relation.places(bucket),
    }
    found = netted.agg(
        *(F.coalesce(F.sum(one), F.lit(0)).alias(name) for name, one in sums.items())
    ).first()
    assert found is not None  # an aggregate without groups has one row
    return int(found["records"]), int(found["used"]), int(found["came"])
