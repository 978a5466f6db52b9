"""The share of a batch that each sink gets: judged, counted and hashed in one pass over the batch.

A row that matches the sink's condition after the batch is an upsert. One that matched before it,
and does not now or is gone, is a delete. Every other row is passed over, and a row that the sink
can't hold is kept beside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DataType, MapType, StructType

from draindown.config.sinks import FlowSink
from draindown.flow.sink_state import Skip
from draindown.sinks.port import FATE, SinkColumn, of_portion
from draindown.spark.contract import json_rows
from draindown.spark.frames import persisted
from draindown.spark.sql import quoted, try_eval

PORTION = 50_000
"""Rows that are on the driver at once, give or take."""
_FLOATS = ("float", "double")
_HASH = "decimal(38,0)"
GIVEN_UP = "given-up: "
"""Begins the reason of a row that a person gave up."""


@dataclass(frozen=True)
class Share:
    """What one sink gets of a batch.

    `counts`: as the ledger's row has them. `digest`: of the rows that are sent. `at`: its number
    among the shares. `portions`: how many portions they come in, the same where a person gave some
    of them up.
    """

    at: int
    columns: Sequence[SinkColumn]
    counts: Mapping[str, int]
    digest: str
    portions: int = 1

    @property
    def rows(self) -> int:
        """Rows that are sent, deletes included."""
        return self.counts["sent"] + self.counts["deleted"]


@dataclass(frozen=True)
class Wanted:
    """One sink, as a batch has to serve it.

    Attributes:
        name: of the sink.
        spec: its spec.
        columns: the columns that it gets, by their names in the table.
        unsendable: reasons and conditions over the sink's columns; of a delete only those over its
            keys.
        of_keys: the same over the keys alone.
        skips: the rows that a person gave up. They are in the share's digest, which so is that of
            the whole batch.
    """

    name: str
    spec: FlowSink
    columns: Mapping[str, SinkColumn]
    unsendable: Mapping[str, str]
    of_keys: Mapping[str, str]
    skips: Sequence[Skip]


def was_of(sinks: Mapping[str, FlowSink], spark: SparkSession) -> dict[str, Column]:
    """Return the conditions of the sinks as columns to be judged on the row before a batch."""
    return {
        _was(at): F.coalesce(try_eval(spark, sink.where), F.lit(False))
        for at, sink in enumerate(sinks.values())
        if sink.where is not None
    }


class Judged:
    """The rows of a batch with their fate at each sink, persisted until `kept` closes.

    `changes`: what `Change.changes` returned for `was_of` the same sinks.
    """

    def __init__(self, changes: DataFrame, wanted: Sequence[Wanted], kept: ExitStack) -> None:
        self._wanted, self._names = wanted, list(changes.columns)
        fated = changes.withColumns(
            {_to(at): _fate(changes, at, one) for at, one in enumerate(wanted)}
        )
        plain = [F.col(quoted(name)).alias(_own(at)) for at, name in enumerate(changes.columns)]
        rows = fated.select(*plain, *[_to(at) for at in range(len(wanted))])
        for at, one in enumerate(wanted):
            rows = self._with_misfits(rows, at, one)
        kept.enter_context(persisted(rows))
        self._rows = rows

    def _with_misfits(self, rows: DataFrame, at: int, one: Wanted) -> DataFrame:
        """Add the reason for which a sink can't hold a row; NULL if it can, or does not get it."""
        named = {column.name: self._column(name) for name, column in one.columns.items()}
        is_delete = F.col(_to(at)) == "delete"
        reasons = [F.when(~is_delete & F.expr(said), why) for why, said in one.unsendable.items()]
        reasons += [F.when(is_delete & F.expr(said), why) for why, said in one.of_keys.items()]
        reasons += [
            F.when(_is_key(rows.withColumns(named), skip.key), given_up(skip)) for skip in one.skips
        ]
        why = F.coalesce(*reasons, F.lit(None)) if reasons else F.lit(None).cast("string")
        wide = rows.withColumns(named) if reasons else rows
        found = wide.withColumn(_why(at), F.when(F.col(_to(at)).isNotNull(), why).cast("string"))
        return (
            found.drop(*[name for name in named if name not in rows.columns]) if reasons else found
        )

    def _column(self, name: str) -> Column:
        return F.col(_own(self._names.index(name)))

    def shares(self) -> list[Share]:
        """Return what each sink gets. One pass over the batch for all of them."""
        sums = [one for at, wanted in enumerate(self._wanted) for one in self._sums(at, wanted)]
        found = self._rows.agg(F.count("*").alias("rows"), *sums).collect()[0]
        shares = []
        for at, wanted in enumerate(self._wanted):
            got = {name: int(found[f"{name}_{at}"]) for name in ("sent", "deleted", "unsendable")}
            counts = {**got, "filtered": int(found["rows"]) - sum(got.values())}
            digest = format(int(found[f"digest_{at}"] or 0) % 2**64, "016x")
            portions = max(1, -(-int(found[f"whole_{at}"]) // PORTION))
            shares.append(Share(at, list(wanted.columns.values()), counts, digest, portions))
        return shares

    def _sums(self, at: int, wanted: Wanted) -> list[Column]:
        to, fits = F.col(_to(at)), F.col(_why(at)).isNull()
        hashed = [to]
        for name in wanted.columns:
            kind = self._rows.schema[_own(self._names.index(name))].dataType
            # a sum of doubles depends on its order
            if not any(word in kind.simpleString() for word in _FLOATS):
                value = _hashable(self._column(name), kind)
                hashed += [value.isNull(), value]
        counted = fits | F.startswith(F.col(_why(at)), F.lit(GIVEN_UP))
        whole = to.isNotNull() & counted
        digest = F.sum(F.when(whole, F.xxhash64(*hashed).cast(_HASH)))
        return [
            F.count_if((to == "upsert") & fits).alias(f"sent_{at}"),
            F.count_if((to == "delete") & fits).alias(f"deleted_{at}"),
            F.count_if(to.isNotNull() & ~fits).alias(f"unsendable_{at}"),
            F.count_if(whole).alias(f"whole_{at}"),
            digest.cast(_HASH).alias(f"digest_{at}"),
        ]

    def rows(self, share: Share) -> Iterator[pa.RecordBatch]:
        """Yield the rows that a sink gets, with FATE; of a delete only the keys have values.

        They come in portions, so that the driver holds no more than PORTION rows, give or take. The
        key decides which portion a row is of.
        """
        wanted = self._wanted[share.at]
        own = self._rows.where(F.col(_to(share.at)).isNotNull() & F.col(_why(share.at)).isNull())
        keys = [
            _own(self._names.index(name)) for name, column in wanted.columns.items() if column.key
        ]
        live = F.col(_to(share.at)) == "upsert"
        chosen = [
            (self._column(name) if column.key else F.when(live, self._column(name))).alias(
                column.name
            )
            for name, column in wanted.columns.items()
        ]
        for portion in range(share.portions):
            of = F.pmod(F.xxhash64(*keys), F.lit(share.portions)) == portion
            mine = own if share.portions == 1 else own.where(of)
            for part in _arrow(mine.select(*chosen, F.col(_to(share.at)).alias(FATE))):
                yield of_portion(part, portion)

    def misfits(self, share: Share) -> DataFrame:
        """Return the rows that a sink can't hold: `sink`, `key` as JSON, `reason`, `fate`."""
        wanted = self._wanted[share.at]
        keys = [
            self._column(name).alias(column.name)
            for name, column in wanted.columns.items()
            if column.key
        ]
        rows = self._rows.where(F.col(_why(share.at)).isNotNull())
        key = F.to_json(F.struct(*keys), {**json_rows.TIMES, "ignoreNullFields": "false"})
        return rows.select(
            F.lit(wanted.name).alias("sink"),
            key.alias("key"),
            F.col(_why(share.at)).alias("reason"),
            F.col(_to(share.at)).alias("fate"),
        )


def given_up(skip: Skip) -> str:
    """Return the reason for which rows that a person gave up are not sent."""
    return f"{GIVEN_UP}{skip.reason} (by {skip.by}, {skip.at})"


def _is_key(rows: DataFrame, key: Mapping[str, str]) -> Column:
    """Return whether a row has the key, by its columns' names at the sink: all rows have an empty
    one.
    """
    same = F.lit(True)
    for name, text in key.items():
        same &= F.col(quoted(name)).eqNullSafe(_typed(text, rows.schema[name].dataType))
    return same


def _typed(text: str, kind: DataType) -> Column:
    """Return the value that a person typed as text, of a struct as JSON; NULL if it is none of the
    type.
    """
    if isinstance(kind, StructType):
        return F.from_json(F.lit(text), kind)
    if kind == BinaryType():
        return F.try_to_binary(F.lit(text), F.lit("base64"))
    return F.lit(text).try_cast(kind)


def _fate(changes: DataFrame, at: int, one: Wanted) -> Column:
    """Return what becomes of a row at a sink: `upsert`, `delete`, or NULL where it is passed
    over.
    """
    if one.spec.where is None:
        return F.col(FATE)
    matches = F.coalesce(try_eval(changes.sparkSession, one.spec.where), F.lit(False))
    return fate_at(F.col(FATE), F.coalesce(F.col(_was(at)), F.lit(False)), matches)


def fate_at(fate: Column, was: Column, matches: Column) -> Column:
    """Return a row's fate at a sink with a condition.

    `fate`: what happens to the row in the table. `was`, `matches`: whether the row met the
    condition before, and after.
    """
    stays = (fate == "upsert") & matches
    return F.when(stays, "upsert").when(fate.isNotNull() & was, "delete")  # else NULL


def _arrow(frame: DataFrame) -> Iterator[pa.RecordBatch]:
    table = frame.toArrow()
    utc = pa.schema([field.with_type(_in_utc(field.type)) for field in table.schema])
    yield from table.cast(utc).to_batches()


def _in_utc(kind: pa.DataType) -> pa.DataType:
    return pa.timestamp(kind.unit, tz="UTC") if pa.types.is_timestamp(kind) and kind.tz else kind


def _hashable(value: Column, kind: DataType) -> Column:
    is_map = isinstance(kind, MapType) or "map<" in kind.simpleString()
    return F.to_json(value, dict(json_rows.TIMES)) if is_map else value


def any_misfit(shares: Sequence[Share]) -> bool:
    """Return whether a sink can't hold a row of the batch."""
    return any(share.counts["unsendable"] for share in shares)


def all_misfits(judged: Judged, shares: Sequence[Share]) -> DataFrame:
    """Return the rows that sinks can't hold, of all sinks."""
    return reduce(DataFrame.unionByName, [judged.misfits(share) for share in shares])


def _own(at: int) -> str:
    return f"__draindown_{at}"


def _to(at: int) -> str:
    return f"__draindown_to_{at}"


def _why(at: int) -> str:
    return f"__draindown_why_{at}"


def _was(at: int) -> str:
    return f"__draindown_was_{at}"
