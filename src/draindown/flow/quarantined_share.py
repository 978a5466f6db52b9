"""The quarantined share: how much of the input was refused. The gate judges it as an expectation that
people may waive.

It is computed from the ledger over the source batches that are not published yet: for each run by
itself, and for all runs up to the end of each run, as that run's check saw them. Good input that
arrives later therefore does not turn a red share green. Rows that were released or discarded no
longer count as refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from draindown.base.findings import Finding
from draindown.base.formatting import count, percent
from draindown.config.derived import DerivedFlow
from draindown.config.landing import FlowSpec
from draindown.config.tolerance import QuarantineBounds
from draindown.flow import quarantine
from draindown.flow.hints import hint
from draindown.gate.published import QUARANTINED_SHARE, Unpublished
from draindown.lake.home import FlowHome
from draindown.ledger import inputs
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import BatchRow, Place
from draindown.runs.report import Expectation
from draindown.runs.request import Request

LEAST = 20
"""Minimum number of records for a meaningful share. Below it, only a share of 100 % counts."""
State = Literal["", "warned", "failed"]
_RANK: tuple[State, ...] = ("", "warned", "failed")
_READER = "read_generation, read_kind, read_batch"
_READ_BY = """
    select generation as read_generation, kind as read_kind, batch as read_batch, input as read_unit,
    "from" as read_from, until as read_until from inputs where {batches}
"""
_SHOWN = ("origin", "reason", "field", "detail")


@dataclass(frozen=True)
class Window:
    """Source batches that are judged together. `open`: quarantined rows that nobody has decided about.

    `run`: the run that the batches belong to; "" for all batches up to the end of some run.
    """

    records: int
    refused: int
    open: int
    run: str = ""

    @property
    def share(self) -> float:
        """Refused rows that are still open, as a fraction of all records."""
        return self.open / self.records if self.records else 0.0

    def state(self, bounds: QuarantineBounds) -> State:
        """Return the verdict on the window. If every record was refused, it fails until each row is
        decided about.
        """
        if not self.open:
            return ""
        if self.refused == self.records:
            return "failed"
        if self.records < LEAST or self.share < min(bounds.warn, bounds.fail):
            return ""
        return "failed" if self.share >= bounds.fail else "warned"


def windows(
    rows: Sequence[BatchRow], still_open: Mapping[Place, int] | None = None
) -> Iterator[Window]:
    """Yield the windows to judge, from source batches in the order of their commits.

    `still_open`: open quarantined rows by batch; None if all quarantined rows are open.
    """
    before = Window(0, 0, 0)
    for run_id, group in groupby(
        (row for row in rows if row.kind == "drain"), key=lambda row: row.run_id
    ):
        own = _sum(list(group), run_id, still_open)
        before = Window(
            before.records + own.records, before.refused + own.refused, before.open + own.open
        )
        yield from (own, before)


def _sum(rows: Sequence[BatchRow], run_id: str, still_open: Mapping[Place, int] | None) -> Window:
    left = sum(
        row.quarantined if still_open is None else still_open.get(row.place, 0) for row in rows
    )
    return Window(
        sum(row.records for row in rows), sum(row.quarantined for row in rows), left, run_id
    )


def worst(bounds: QuarantineBounds, found: Sequence[Window]) -> tuple[State, Window | None]:
    """Return the worst state and its window. Break ties in favor of a single run, then of the
    larger share.
    """
    ranked = sorted(
        found, key=lambda one: (_RANK.index(one.state(bounds)), bool(one.run), one.share)
    )
    return (ranked[-1].state(bounds), ranked[-1]) if ranked else ("", None)


def judged(request: Request, state: Unpublished) -> list[Expectation]:
    """Return the verdict on the unpublished source batches of the target, in a list; empty if they
    had no record.

    Reads the ledger and, if people decided about rows, the quarantine. Needs no engine.
    """
    if isinstance(request.declared, DerivedFlow):
        return []  # it reads rows that its source accepted
    layout, bounds = request.layout, request.flow_spec.quarantine
    rows = unpublished_rows(layout, state)
    found = list(windows(rows))
    if not found or not found[-1].records:
        return []
    if worst(bounds, found)[0] and layout.tables.resolutions.exists:
        found = list(windows(rows, open_rows(layout, rows, request.flow_spec.source.counts_from)))
    return [_verdict(request, rows, found)]


def unpublished_rows(layout: FlowHome, state: Unpublished) -> list[BatchRow]:
    """Return the ledger rows of unpublished source batches, from the newest generation that has
    any.

    A newer generation reads all input again under the current contract. Only its refusals count, so
    none counts twice.
    """
    after = -1 if state.published is None else state.published.version
    rows = [
        row
        for row in ledger_table.source_after(layout, after)
        if row.table_version <= state.version
    ]
    newest = max((row.generation for row in rows), default=0)
    return [row for row in rows if row.generation == newest]


def open_rows(layout: FlowHome, rows: Sequence[BatchRow], counts_from: int) -> dict[Place, int]:
    """Return the number of open quarantined rows by batch. Rows that an earlier generation refused
    first count, too.

    `counts_from`: position of the first record of a unit.
    """
    refusing = {row.place: row for row in rows if row.quarantined}
    if not refusing or not layout.tables.inputs.exists:
        return {}
    within = (
        f"{quarantine.UNIT} = read_unit and {quarantine.POSITION} >= read_from + {int(counts_from)} "
        f"and {quarantine.POSITION} < read_until + {int(counts_from)}"
    )
    found = quarantine.query(
        layout,
        f"{_READER}, count(*) as rows",
        quarantine.Filter(),
        f"group by {_READER}",
        join=f" join ({_READ_BY.format(batches=inputs.among(refusing))}) on {within}",
        beside={"inputs": layout.tables.inputs},
    ).to_pylist()
    still = {
        (row["read_generation"], row["read_kind"], row["read_batch"]): int(row["rows"])
        for row in found
    }
    return {place: min(row.quarantined, still.get(place, 0)) for place, row in refusing.items()}


def _verdict(request: Request, rows: Sequence[BatchRow], found: Sequence[Window]) -> Expectation:
    bounds = request.flow_spec.quarantine
    state, window = worst(bounds, found)
    window = window if state and window else found[-1]
    first = first_refused(request.layout, rows) if state else None
    of_run = f" by run {window.run}" if window.run and len(found) > 2 else ""
    told = f"{percent(window.share)} of the records were quarantined{of_run}; {wanted(bounds)}"
    return Expectation(
        name=QUARANTINED_SHARE,
        success=state != "failed",
        scope="input",
        unexpected=window.open,
        judged=window.records,
        sample=[quarantine.place_of(first)] if first else [],
        detail="; ".join([told, *_about(request.flow_spec, first)]),
        judged_by="the ledger",
    )


def wanted(bounds: QuarantineBounds) -> str:
    """Return the bounds of the pipeline file in words."""
    return f"warns from {percent(bounds.warn)}, fails from {percent(bounds.fail)}"


def told(
    flow: FlowSpec | DerivedFlow, layout: FlowHome, rows: Sequence[BatchRow]
) -> tuple[State, list[Finding]]:
    """Return the verdict that a check will reach if nobody decides, and the finding that a drain
    reports.

    The finding is reported at `warn` or above, however few records there were.
    """
    if isinstance(flow, DerivedFlow):
        return "", []
    found = list(windows(rows))
    state, window = worst(flow.quarantine, found)
    window = window if state and window else found[-1] if found else None
    if window is None or not window.refused or (not state and window.share < flow.quarantine.warn):
        return state, []
    first = first_refused(layout, rows)
    what = f"{count(window.refused)} of {count(window.records, 'record')} quarantined ({percent(window.share)})"
    listing = f"draindown quarantine list {layout.pipeline}/{layout.flow}"
    subject, detail = (
        quarantine.place_of(first) if first else layout.tables.quarantine.path,
        "; ".join([what, *_about(flow, first)]),
    )
    return state, [Finding(kind="quarantined", subject=subject, detail=detail, next=listing)]


def first_refused(layout: FlowHome, rows: Sequence[BatchRow]) -> dict[str, Any] | None:
    """Return the first row that these source batches refused, by unit and position; None if the
    quarantine has none.
    """
    batches = {
        (row.generation, row.batch) for row in rows if row.kind == "drain" and row.quarantined
    }
    if not batches:
        return None
    generation = max(number for number, _ in batches)
    numbers = ", ".join(str(int(batch)) for of, batch in batches if of == generation)
    where = f"kind = 'drain' and generation = {int(generation)} and batch in ({numbers})"
    sql = f"select {', '.join(_SHOWN)}, substr(raw, 1, 2000) as raw from t where {where}"
    found = layout.tables.quarantine.rows(
        f"{sql} order by batch, {quarantine.UNIT}, {quarantine.POSITION} limit 1"
    )
    return found[0] if found else None


def _about(flow: FlowSpec, first: Mapping[str, Any] | None) -> list[str]:
    """Return why the first row was refused and, if there is a hint, what may help."""
    if first is None:
        return []
    reason = ":".join(filter(None, (first["reason"], first["field"])))
    why = f"{reason}, {first['detail']}" if first["detail"] else reason
    return list(filter(None, (f"the first: {why}", hint(flow, first))))
