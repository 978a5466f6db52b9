"""Where rows of a derived table came from: the rows of its sources behind each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import duckdb
import pyarrow as pa

from draindown.base.errors import TerminalError
from draindown.base.formatting import shortened
from draindown.lake.layout import FlowLayout
from draindown.lake.table_log import UNREADABLE, TableLog
from draindown.ledger import table as ledger_table
from draindown.planning.compaction import vacuumed
from draindown.proof.behind import COUNTS, ROW, behind, source_rows
from draindown.proof.pinned import pinned
from draindown.provenance.model import Absent, Batch, State, Trace
from draindown.sources.tables import late
from draindown.spec.derived import DerivedFlow
from draindown.spec.lookup import Lookup

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Behind:
    """Source rows behind rows of a derived table.

    `rows`: by source table, those behind each row, by its place. `number`: how many count, likewise. `otherwise`: by
    source table, why others don't.
    """

    rows: Sequence[Mapping[int, Sequence[Row]]]
    number: Sequence[Mapping[int, int]]
    otherwise: Sequence[str]
    gone: Sequence[str]


class DerivedTable:
    """The table of a derived flow, asked for rows and keys. What is behind its source rows is asked of their tables."""

    def __init__(self, flow: DerivedFlow, layout: FlowLayout, limit: int) -> None:
        self._flow, self._layout, self._limit = flow, layout, limit

    @property
    def tables(self) -> Sequence[str]:
        """The source tables, as the file names them."""
        return [str(one) for one in self._flow.source.read]

    def behind(self, table: pa.Table) -> Behind:
        """Return the source rows behind rows of the table, given with all of its columns, or with its keys alone."""
        sources, decided, gone = self._sources()
        missing = [name for name in self._expected() if name not in table.column_names]
        for name in missing:
            table = table.append_column(name, pa.nulls(table.num_rows))
        try:
            found = source_rows(self._layout, self._flow, sources, table, decided, self._limit)
        except (*UNREADABLE, duckdb.Error) as error:
            gone = [*gone, f"source rows can't be read: {shortened(str(error), 300)}"]
            found = [([], {}) for _ in sources]
        rows: list[dict[int, list[Row]]] = []
        for some, _ in found:
            by_row: dict[int, list[Row]] = defaultdict(list)
            for row in some:
                by_row[row[ROW]].append(row)
            rows.append(by_row)
        return Behind(
            rows, [number for _, number in found], [one.otherwise for one in behind(self._flow, sources)], gone
        )

    def _expected(self) -> list[str]:
        """Return the columns of the result that `behind` may name besides the keys."""
        times = list(self._flow.interval or ())
        part = self._flow.derivation
        made = list(getattr(part, "made", ())) if self._flow.history else []
        paired = list(getattr(part, "times", None) or ())[:1]
        asked = [part.result_time] if isinstance(part, Lookup) and part.time else []
        return [*times, *made, *paired, *asked]

    def _sources(self) -> tuple[Sequence[TableLog], int, list[str]]:
        """Return the sources at the versions that the newest batch read; where these are gone, as they are now."""
        try:
            found = pinned(self._layout, self._flow.source)
        except TerminalError as error:
            logs = [TableLog(self._layout.other_table(one.table)) for one in self._flow.source.read]
            if not all(log.exists for log in logs):
                raise
            at = (vacuumed(self._layout).get("table") or {}).get("at", "")
            when = f"; old files were last removed at {at}" if at else ""
            why = f"the sources as they are now, not as they were read: {error.found}{when}"
            return logs, late.newest(self._layout), [why]
        return found.sources, found.decided, []

    def trace(
        self, key: Row, row: Row, number: Mapping[str, int], sources: Sequence[Trace], gone: Sequence[str]
    ) -> Trace:
        """Return the trace of a row, of which `sources` are behind it."""
        stamp = row["_changed_at"]
        batch = ledger_table.by_stamp(self._layout, {stamp}).get(stamp)
        missing = [] if batch else [f"no batch of the ledger has its stamp {row.get('_changed_at')}"]
        return self._new(
            key,
            "derived",
            self._flow.derivation.in_words,
            row=row,
            batch=Batch.of(batch) if batch else None,
            number=number,
            sources=sources,
            gone=[*missing, *gone],
        )

    def absent(self, key: Row, number: Mapping[str, int], sources: Sequence[Trace], gone: Sequence[str]) -> Trace:
        """Return the trace of a key that the table lacks. `number`: of the source rows that would count in its row."""
        pipeline, flow = self._layout.pipeline, self._layout.flow
        state: Absent = "unknown" if gone else "never-seen"
        said = "no source row is behind such a key"
        then: list[str] = []
        if sources:
            state, said = "left-out", "source rows have its key, and none of them makes a row with it"
            reasons = sorted({one.why for one in sources if one.why})
            said += f": {'; '.join(reasons)}" if reasons else ""
        made_of_each = not (self._flow.history or self._flow.session or self._flow.processor)
        if sources and all(number.values()) and made_of_each:
            state, said = "unknown", "source rows make a row with this key, and the table lacks it"
            then = [f"draindown prove {pipeline} --flow {flow}"]
        if any("`accept`" in one.why for one in sources):
            then = [f"draindown late list {pipeline} --flow {flow} --state all"]
        return self._new(key, state, said, number=number, sources=sources, gone=gone, next=then)

    def _new(self, key: Row, state: State, said: str, **more: Any) -> Trace:
        layout = self._layout
        return Trace(layout.pipeline, layout.flow, layout.table_name, key, state, said, **more)


def of_source(trace: Trace, row: Row, otherwise: str) -> Trace:
    """Return the trace of a source row with whether it counts in the row that was asked for."""
    counts = bool(row[COUNTS])
    return replace(trace, counts=counts, why="" if counts else otherwise)
