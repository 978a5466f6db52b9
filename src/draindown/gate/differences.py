"""The rows in which two versions of a table differ, counted by DuckDB: all rows are compared, with
all columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import duckdb

from draindown.base.duck import connected
from draindown.gate.acceptance import ROWS, Difference
from draindown.lake.table import Table, identifier, stream


def difference(
    later: Table,
    earlier: Table | None,
    keys: Sequence[str],
    beside: Sequence[str] = (),
    where: str = "true",
) -> Difference:
    """Return how `later` differs from `earlier`, or from an empty table.

    `keys`: columns that identify a row; `beside`: further columns of the images. `where`: SQL of
    the rows to compare. Raises what reading a version raises whose log or files are gone.
    """
    named = [name for name in dict.fromkeys([*keys, *beside]) if name in later.column_types]
    with connected() as db:
        _load(db, later, earlier, where)
        chosen = "".join(f"{identifier(name)}, " for name in named)
        db.execute(
            f"""create temp table images as
            select {chosen} sum(_n)::bigint as {ROWS} from differing where _n > 0 group by all
            union all select {chosen} sum(_n)::bigint from differing where _n < 0 group by all"""
        )
        by = ", ".join(identifier(name) for name in keys if name in named)
        # without its keys, the rows of a table are one group
        grouped = f"group by {by}" if by else ""
        (counted,) = db.execute(
            f"""with keyed as (select coalesce(sum({ROWS}) filter ({ROWS} > 0), 0) as came,
                coalesce(-sum({ROWS}) filter ({ROWS} < 0), 0) as went from images {grouped})
            select coalesce(sum(came - least(came, went)), 0)::bigint, coalesce(sum(least(came, went)), 0)::bigint,
                coalesce(sum(went - least(came, went)), 0)::bigint from keyed"""
        ).fetchall()
        images = db.sql("select * from images").to_arrow_table()
    return Difference(images, *map(int, counted))


def _load(db: duckdb.DuckDBPyConnection, later: Table, earlier: Table | None, where: str) -> None:
    """Make the table `differing`: each row that is more often in one version than in the other, and
    how much.
    """
    columns = ", ".join(map(identifier, later.column_types))
    db.register("later", stream(later.table, f"select * from t where {where}"))
    both = "select *, 1 as _n from later"
    if earlier is not None:
        db.register("earlier", stream(earlier.table, f"select * from t where {where}"))
        both += " union all by name select *, -1 as _n from earlier"
        dropped = [name for name in earlier.column_types if name not in later.column_types]
        columns = ", ".join([columns, *map(identifier, dropped)])
    db.execute(
        f"""create temp table differing as
        select {columns}, sum(_n) as _n from ({both}) group by {columns} having sum(_n) <> 0"""
    )
