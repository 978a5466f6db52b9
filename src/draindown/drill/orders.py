"""Compare the tables of two lakes that drained the same input in another order, and name what
differs.

Rows are read with `deltalake` and compared in DuckDB, columns by name, draindown's own left out:
arrival and stamps tell orders apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import duckdb

from draindown.base.clock import EPOCH
from draindown.base.duck import connected
from draindown.base.formatting import count, printable, value_text
from draindown.config.models import PipelineSpec
from draindown.config.names import is_own
from draindown.lake.home import FlowHome
from draindown.lake.table import Table, identifier
from draindown.ledger import inputs
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import BatchRow
from draindown.proof.compare import differs

_SHOWN = 5  # differences of a table, before the rest is only counted
_UNITS = 3
_STAMP = "_changed_at"
_FLOATS = ("float", "double")


@dataclass(frozen=True)
class Difference:
    """A key for which the tables of the two lakes differ.

    `what`: "table", or "quarantine" by id and reason; `key`, `detail`: in words; `control`,
    `shuffled`: the slice that wrote the row in each lake, and what it read; empty where there is no
    row, or its batch is not known.
    """

    flow: str
    what: str
    key: str
    detail: str
    control: str = ""
    shuffled: str = ""

    def __str__(self) -> str:
        slices = [
            f"{name} {text}"
            for name, text in (("control", self.control), ("shuffled", self.shuffled))
            if text
        ]
        return printable(
            "; ".join([f"{self.flow}: {self.what}, {self.key}: {self.detail}", *slices])
        )


def differences(
    control: PipelineSpec, shuffled: PipelineSpec, flows: Sequence[str]
) -> Iterator[Difference]:
    """Yield what differs in the tables and the quarantine of flows: of each the first keys, then
    how many more.
    """
    for name in flows:
        keys = control.declared(name).target.row_keys
        mine, theirs = control.layout(name), shuffled.layout(name)
        yield from _compared(
            name,
            "table",
            (mine, mine.tables.target.path),
            (theirs, theirs.tables.target.path),
            keys,
        )
        yield from _refused(name, mine, theirs)


def _compared(
    flow: str,
    what: str,
    mine: tuple[FlowHome, str],
    theirs: tuple[FlowHome, str],
    keys: Sequence[str],
) -> Iterator[Difference]:
    """Yield the keys that differ between two tables; without keys, rows that one has more often
    than the other.
    """
    logs = [Table(path) for _, path in (mine, theirs)]
    if not all(log.exists for log in logs):
        if any(log.exists and log.row_count for log in logs):
            yield Difference(flow, what, "all rows", "only one of the lakes has the table")
        return
    names = [
        {name: str(kind) for name, kind in log.column_types.items() if not is_own(name)}
        for log in logs
    ]
    if set(names[0]) != set(names[1]):
        odd = ", ".join(sorted(set(names[0]) ^ set(names[1])))
        yield Difference(flow, what, "all rows", f"columns {odd} are not in both")
        return
    with connected() as db:
        for name, log in zip(("e", "h"), logs, strict=True):
            stamp = [_STAMP] if _STAMP in log.column_types else []
            listed = ", ".join(map(identifier, [*names[0], *stamp]))
            db.register(f"read_{name}", log.query(f"select {listed} from t"))
            db.execute(f"create table {name} as select *, true as _is from read_{name}")
        find = _by_key if keys else _by_row
        yield from find(db, flow, what, names[0], keys, mine[0], theirs[0])


def _by_key(
    db: duckdb.DuckDBPyConnection,
    flow: str,
    what: str,
    types: dict[str, str],
    keys: Sequence[str],
    mine: FlowHome,
    theirs: FlowHome,
) -> Iterator[Difference]:
    others = [name for name in types if name not in keys]
    same = " and ".join(
        f"e.{identifier(key)} is not distinct from h.{identifier(key)}" for key in keys
    )
    wrong = [differs(name, "0" if types[name] in _FLOATS else None) for name in others]
    key = ", ".join(f"coalesce(e.{identifier(one)}, h.{identifier(one)})::varchar" for one in keys)
    values = ", ".join(
        f"e.{identifier(n)}::varchar, h.{identifier(n)}::varchar, {w}"
        for n, w in zip(others, wrong, strict=True)
    )
    test = " or ".join(["e._is is null", "h._is is null", *wrong])
    found = db.execute(
        f"select [{key}], e._is, h._is, epoch_us(e.{_STAMP}), epoch_us(h.{_STAMP}), row({values or 'null'}) "
        f"from e full join h on {same} where {test} order by 1"
    ).fetchall()
    for named, has, there, written, again, cells in found[:_SHOWN]:
        told = ", ".join(f"{name} {value}" for name, value in zip(keys, named, strict=True))
        pairs = list(_cells(others, list(cells.values() if isinstance(cells, dict) else cells)))
        detail = (
            "; ".join(pairs)
            if has and there
            else "only the control has it"
            if has
            else "the control lacks it"
        )
        yield Difference(flow, what, told, detail, _slice(mine, written), _slice(theirs, again))
    yield from _rest(flow, what, len(found))


def _cells(names: Sequence[str], cells: Sequence[Any]) -> Iterator[str]:
    for at, name in enumerate(names):
        one, other, differ = cells[3 * at : 3 * at + 3]
        if differ:
            yield f"{name} is {value_text(one)} in the control, {value_text(other)} after the shuffle"


def _by_row(
    db: duckdb.DuckDBPyConnection,
    flow: str,
    what: str,
    types: dict[str, str],
    keys: Sequence[str],
    mine: FlowHome,
    theirs: FlowHome,
) -> Iterator[Difference]:
    del keys
    columns = ", ".join(f"{identifier(name)}::varchar" for name in types)
    sums = (
        f"select row, sum(n) as n, max(e) as e, max(h) as h from (select [{columns}] as row, 1 as n, "
        f"epoch_us({_STAMP}) as e, null as h from e union all select [{columns}], -1, null, "
        f"epoch_us({_STAMP}) from h) group by row having sum(n) <> 0 order by row"
    )
    found = db.execute(sums).fetchall()
    for row, number, written, again in found[:_SHOWN]:
        detail = f"{count(abs(number), 'time')} more in {'the control' if number > 0 else 'the shuffled copy'}"
        told = ", ".join(f"{name} {value}" for name, value in zip(types, row, strict=True))
        yield Difference(flow, what, told, detail, _slice(mine, written), _slice(theirs, again))
    yield from _rest(flow, what, len(found))


def _refused(flow: str, mine: FlowHome, theirs: FlowHome) -> Iterator[Difference]:
    """Yield quarantined records that only one lake has, or that were refused for another reason."""
    told = []
    for layout in (mine, theirs):
        columns = "origin['input'] as input, origin['position'] as position"
        sql = f"select quarantine_id as id, {columns}, reason, field from t"
        rows = layout.tables.quarantine.rows(sql)
        told.append(
            {
                (row["id"], row["reason"], row["field"]): f"{row['input']}:{row['position']}"
                for row in rows
            }
        )
    odd = sorted(told[0].keys() ^ told[1].keys(), key=str)
    for key in odd[:_SHOWN]:
        id, reason, field = key
        where = "the control" if key in told[0] else "the shuffled copy"
        place = told[0].get(key) or told[1][key]
        why = f"{reason}{f':{field}' if field else ''}"
        yield Difference(
            flow, "quarantine", f"{place} ({id[:12]})", f"refused for {why} in {where} only"
        )
    yield from _rest(flow, "quarantine", len(odd))


def _rest(flow: str, what: str, number: int) -> Iterator[Difference]:
    if number > _SHOWN:
        yield Difference(flow, what, f"{number - _SHOWN:,} more", "differ too")


def _slice(layout: FlowHome, stamp: int | None) -> str:
    """Return the slice that wrote a row, by its stamp in microseconds since 1970, and what it
    read.
    """
    at = None if stamp is None else EPOCH + timedelta(microseconds=stamp)
    found = {} if at is None else ledger_table.by_stamp(layout, {at})
    return "".join(_read(layout, row) for row in found.values())


def _read(layout: FlowHome, row: BatchRow) -> str:
    units = [one.unit for one in inputs.of_batch(layout, row.place)]
    few = ", ".join(units[:_UNITS]) + (
        f" and {len(units) - _UNITS} more" if len(units) > _UNITS else ""
    )
    return f"slice {row.slice} ({few})"
