"""Where rows of a derived table came from: the rows of its sources behind each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import duckdb
import pyarrow as pa

from draindown.base.errors import TerminalError
from draindown.base.formatting import count, shortened
from draindown.config.derived import DerivedFlow
from draindown.config.lookup import Lookup
from draindown.lake.home import FlowHome
from draindown.lake.table import UNREADABLE, Table
from draindown.ledger import table as ledger_table
from draindown.planning.compaction import vacuumed
from draindown.proof.behind import COUNTS, ROW, behind, source_rows
from draindown.proof.former import Former, former_rows
from draindown.proof.pinned import pinned
from draindown.provenance.model import Absent, Batch, State, Trace
from draindown.sources.tables import late

Row = Mapping[str, Any]
_DECIDING: tuple[Absent, ...] = (
    "waiting",
    "deleted",
    "withdrawn",
    "quarantined",
    "moved",
    "superseded",
    "left-out",
)
"""States of a source's key that say why the derived table has no row with the same key, in order of
precedence.
"""


@dataclass(frozen=True)
class Behind:
    """Source rows behind rows of a derived table.

    `rows`: by source table, those behind each row, by its place. `number`: how many count,
    likewise. `otherwise`: by source table, why others don't.
    """

    rows: Sequence[Mapping[int, Sequence[Row]]]
    number: Sequence[Mapping[int, int]]
    otherwise: Sequence[str]
    gone: Sequence[str]


@dataclass(frozen=True)
class Lacking:
    """What is known of a key that the table lacks.

    `sources`: traces of source rows that have the key. `former`: of those that had it, `had` in
    all. `without`: of keys of source tables that have no row with the same key. `unread`: source
    tables with such a row in a version that no batch read. `gone`: what a verdict would need and
    can't be read.
    """

    sources: Sequence[Trace]
    former: Sequence[Trace] = ()
    had: int = 0
    without: Sequence[Trace] = ()
    unread: Sequence[str] = ()
    gone: Sequence[str] = ()


class DerivedTable:
    """The table of a derived flow, asked for rows and keys. What is behind its source rows is asked
    of their tables.
    """

    def __init__(self, flow: DerivedFlow, layout: FlowHome, limit: int) -> None:
        self._flow, self._layout, self._limit = flow, layout, limit

    @property
    def tables(self) -> Sequence[str]:
        """The source tables, as the file names them."""
        return [str(one) for one in self._flow.source.read]

    def behind(self, table: pa.Table, key: Collection[str] | None = None) -> Behind:
        """Return the source rows behind rows of the table. `key`: the columns that are known, if
        not all are.
        """
        sources, decided, gone = self._sources
        try:
            found = source_rows(
                self._layout, self._flow, sources, self._whole(table), decided, self._limit, key
            )
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
            rows,
            [number for _, number in found],
            [one.otherwise for one in behind(self._flow, sources)],
            gone,
        )

    def former(
        self, table: pa.Table, key: Collection[str], keys: Sequence[Sequence[str]], limit: int
    ) -> list[Former]:
        """Return the source rows that were behind a row with the key in `table`, by source table.

        `keys`: by source table, the columns that name its rows.
        """
        sources, decided, _ = self._sources
        try:
            return former_rows(
                self._layout, self._flow, sources, keys, self._whole(table), decided, limit, key
            )
        except (*UNREADABLE, duckdb.Error) as error:
            why = f"earlier source rows can't be read: {shortened(str(error), 300)}"
            return [Former((), 0, (why,)) for _ in sources]

    def unread(self, table: pa.Table, key: Collection[str]) -> list[str]:
        """Return the source tables with rows behind a row with the key in `table`, in versions that
        no batch read.
        """
        sources, decided, _ = self._sources
        newest = [Table(log.path) for log in sources]
        if all(log.version == read.version for log, read in zip(newest, sources, strict=True)):
            return []
        try:
            found = source_rows(
                self._layout, self._flow, newest, self._whole(table), decided, 1, key
            )
        except (*UNREADABLE, duckdb.Error):
            return []
        return [name for name, (some, _) in zip(self.tables, found, strict=True) if some]

    def _whole(self, table: pa.Table) -> pa.Table:
        """Return rows of the table with all columns that `behind` may name, NULL where they lack
        them.
        """
        for name in self._expected():
            if name not in table.column_names:
                table = table.append_column(name, pa.nulls(table.num_rows))
        return table

    def _expected(self) -> list[str]:
        """Return the columns of the result that `behind` may name besides the keys."""
        times = list(self._flow.interval or ())
        part = self._flow.derivation
        made = list(getattr(part, "made", ())) if self._flow.history else []
        paired = list(getattr(part, "times", None) or ())[:1]
        asked = [part.time] if isinstance(part, Lookup) and part.time else []
        return [*times, *made, *paired, *asked]

    @cached_property
    def _sources(self) -> tuple[Sequence[Table], int, list[str]]:
        """Return the sources at the versions that the newest batch read; where these are gone, as
        they are now.
        """
        try:
            found = pinned(self._layout, self._flow.source)
        except TerminalError as error:
            logs = [self._layout.tables.other(one.table) for one in self._flow.source.read]
            if not all(log.exists for log in logs):
                raise
            at = (vacuumed(self._layout).get("table") or {}).get("at", "")
            when = f"; old files were last removed at {at}" if at else ""
            why = f"the sources as they are now, not as they were read: {error.found}{when}"
            return logs, late.newest(self._layout), [why]
        return found.sources, found.decided, []

    def trace(
        self,
        key: Row,
        row: Row,
        number: Mapping[str, int],
        sources: Sequence[Trace],
        gone: Sequence[str],
    ) -> Trace:
        """Return the trace of a row, of which `sources` are behind it."""
        stamp = row.get("_changed_at")
        batch = None if stamp is None else ledger_table.by_stamp(self._layout, {stamp}).get(stamp)
        missing = (
            [] if batch or stamp is None else [f"no batch of the ledger has its stamp {stamp}"]
        )
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

    def absent(self, key: Row, number: Mapping[str, int], known: Lacking) -> Trace:
        """Return the trace of a key that the table lacks. `number`: of the source rows that would
        count in its row.
        """
        state, said, then = self._verdict(number, known)
        traces = [*known.sources, *known.former, *known.without]
        return self._new(
            key, state, said, number=number, sources=traces, gone=known.gone, next=then
        )

    def _verdict(self, number: Mapping[str, int], known: Lacking) -> tuple[Absent, str, list[str]]:
        pipeline, flow = self._layout.pipeline, self._layout.flow
        made_of_each = not (self._flow.history or self._flow.session or self._flow.processor)
        if known.sources and all(number.values()) and made_of_each:
            audit = f"draindown audit {pipeline}/{flow}"
            return (
                "unknown",
                "source rows make a row with this key, and the table lacks it",
                [audit],
            )
        if known.unread:
            run = f"draindown run {pipeline}/{flow}"
            return (
                "waiting",
                f"source rows with its key wait in {', '.join(known.unread)}: no batch read them",
                [run],
            )
        if known.former:
            return _of_former(known)
        if known.sources:
            reasons = sorted({one.why for one in known.sources if one.why})
            said = "source rows have its key, and none of them makes a row with it"
            late_rows = any("`allowed_lateness`" in why for why in reasons)
            then = [f"draindown late list {pipeline}/{flow} --state all"] if late_rows else []
            return "left-out", f"{said}{': ' if reasons else ''}{'; '.join(reasons)}", then
        for state in _DECIDING:
            telling = [one for one in known.without if one.state == state]
            if telling:
                return (
                    state,
                    f"no source row is behind such a key: {telling[0].table}: {telling[0].said}",
                    [],
                )
        if known.gone:
            return (
                "unknown",
                "no source row is behind such a key, as far as sources can still be read",
                [],
            )
        return "never-seen", "no source row was ever behind such a key", []

    def _new(self, key: Row, state: State, said: str, **more: Any) -> Trace:
        layout = self._layout
        return Trace(layout.pipeline, layout.flow, layout.table_name, key, state, said, **more)


def _of_former(known: Lacking) -> tuple[Absent, str, list[str]]:
    """Return the verdict on a key that source rows had: `moved` if one of them has another key
    now.
    """
    states = {"moved" if one.row is not None else one.state for one in known.former}
    state: Absent = (
        "moved" if "moved" in states else "withdrawn" if states == {"withdrawn"} else "deleted"
    )
    became = {
        "moved": "other values now",
        "withdrawn": "been withdrawn",
        "deleted": "been deleted",
    }[state]
    first = known.former[0]
    rows = count(known.had, "source row")
    said = f"{rows} had its key and {'has' if known.had == 1 else 'have'} {became}; the newest: {first.said}"
    return state, said, [first.command]


def of_source(trace: Trace, row: Row, otherwise: str) -> Trace:
    """Return the trace of a source row with whether it counts in the row that was asked for."""
    counts = bool(row[COUNTS])
    return replace(trace, counts=counts, why="" if counts else otherwise)
