"""The proof of a `processor`: its class folds every key from the beginning, row by row, in plain
Python.

DuckDB puts the rows in order and compares; it folds nothing. Neither snapshots nor the code of a
batch are used.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import Any

import duckdb
import pyarrow as pa

from draindown.config.names import is_own
from draindown.config.processor import Processor
from draindown.config.ranking import total_order
from draindown.lake.table import Table, identifier
from draindown.processors import loading, plain
from draindown.processors.fold import Calls, Failed
from draindown.processors.stream import pylist
from draindown.proof.ranking import is_certain, listed
from draindown.proof.source_rows import SourceRows

_BATCH = 10_000
ENGINE = f"python {platform.python_version()}, which folds row by row; duckdb {duckdb.__version__} orders and compares"


def is_provable(types: Mapping[str, str]) -> bool:
    """Return whether the order of the source's rows is certain to be Spark's. `types`: Delta's, by
    column.
    """
    return all(is_certain(str(kind)) for name, kind in types.items() if not is_own(name))


def expect(db: duckdb.DuckDBPyConnection, part: Processor, source: Table, table: Table) -> None:
    """Fold the rows of the table `source` of `db`, and put the result into its new table
    `expected`.

    Raises as `loading.load`, and `fold.Failed` for rows that the class can't fold.
    """
    names = [name for name in source.column_types if not is_own(name)]
    columns = [*part.keys, *part.columns]
    schema = table.columns(columns)
    made, _ = loading.load(part.root, part.of, part.code)
    rows = _ordered(db, part, names)
    db.register("_folded", schema.empty_table())
    db.execute("create table expected as select * from _folded")
    for batch in _batches(_results(Calls(part.shape(made)), part, rows), schema):
        db.register("_folded", pa.Table.from_batches([batch]))
        db.execute("insert into expected select * from _folded")
    db.unregister("_folded")


def _ordered(
    db: duckdb.DuckDBPyConnection, part: Processor, names: Sequence[str]
) -> Iterator[tuple[tuple[Any, ...], int, dict[str, Any]]]:
    """Yield key, time in microseconds and values of the rows with a time, sorted by key and
    order.
    """
    order = ", ".join(
        f"{identifier(one.column)} asc nulls last" for one in total_order(part, names)
    )
    time = identifier(part.time)
    cursor = db.cursor()
    found = cursor.sql(
        f"select epoch_us({time}) as _us, {listed(names)} from source where {time} is not null "
        f"order by {listed(part.group_by)}, {order}"
    )
    for batch in found.to_arrow_reader(_BATCH):
        times, *values = (pylist(column) for column in batch.columns)
        for at, *row in zip(times, *values, strict=True):
            named = dict(zip(names, row, strict=True))
            yield tuple(named[name] for name in part.group_by), at, named


def _results(
    calls: Calls, part: Processor, rows: Iterator[tuple[tuple[Any, ...], int, dict[str, Any]]]
) -> Iterator[dict[str, Any]]:
    for key, own in groupby(rows, itemgetter(0)):
        first = next(own)
        timed = ((at, row) for _, at, row in chain([first], own))
        try:
            for made in plain.folded(calls, timed):
                yield plain.named(made, key, part.group_by, first[2][part.time])
        except Failed as error:
            raise Failed(f"key ({', '.join(map(repr, key))}): {error}") from error


def _batches(rows: Iterator[dict[str, Any]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    waiting = list[dict[str, Any]]()
    for row in rows:
        waiting.append(row)
        if len(waiting) >= _BATCH:
            yield pa.RecordBatch.from_pylist(waiting, schema=schema)
            waiting = []
    yield pa.RecordBatch.from_pylist(waiting, schema=schema)


def behind(part: Processor) -> SourceRows:
    """Return the rows of a result row's segment: of its key, from the segment's start to the first
    longer gap.
    """
    time, start = identifier(part.time), f"epoch_us(_r.{part.START})"
    same = " and ".join(
        f"_o.{identifier(name)} is not distinct from _r.{identifier(name)}"
        for name in part.group_by
    )
    # level by level: beside a column of the source, DuckDB would not find an alias of the same name
    times = f"select epoch_us(_o.{time}) as _us from source _o where {same} and epoch_us(_o.{time}) >= {start}"
    spaced = f"select _us, _us - lag(_us) over (order by _us) as _gap from ({times})"
    end = f"(select min(_us) from ({spaced}) where _gap > {part.gap * 1_000_000})"
    within = (
        f"epoch_us(_s.{time}) >= {start} and epoch_us(_s.{time}) < coalesce({end}, {2**63 - 1})"
    )
    return SourceRows({name: name for name in part.group_by}, condition=within, by_itself=False)
