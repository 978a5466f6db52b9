"""The refused share: how much of what came in was refused, as a verdict of the gate that someone has to decide about.

It is judged over the source batches that are not published yet, from the ledger: of each run by itself, and of all
runs up to its end together, as its check saw them. So good input that comes later doesn't make a red share green.
Rows that were released or discarded are decided about, and count as refused no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from draindown.base.findings import Finding
from draindown.base.formatting import count, percent
from draindown.flow import quarantine
from draindown.flow.hints import hint
from draindown.gate.published import REFUSED_SHARE, Unpublished
from draindown.lake.layout import FlowLayout
from draindown.lake.table_log import log_of
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import BatchRow, Place
from draindown.runs.report import Expectation
from draindown.runs.request import Request
from draindown.spec.models import FlowSpec, QuarantineBounds

LEAST = 20
"""Records from which on a share means something; that all of them were refused does before."""
State = Literal["", "warned", "failed"]
_RANK: tuple[State, ...] = ("", "warned", "failed")
_SHOWN = ("file", "position", "reason", "field", "detail")


@dataclass(frozen=True)
class Window:
    """Some source batches that are judged together. `open`: refused rows that nobody decided about.

    `run`: the run they are of, "" for all up to some run's end.
    """

    records: int
    refused: int
    open: int
    run: str = ""

    @property
    def share(self) -> float:
        """Rows that were refused and are open, of all records."""
        return self.open / self.records if self.records else 0.0

    def state(self, bounds: QuarantineBounds) -> State:
        """What the share means. All refused fails, however few they are, until each was decided about."""
        if not self.open:
            return ""
        if self.refused == self.records:
            return "failed"
        if self.records < LEAST or self.share < min(bounds.warn, bounds.fail):
            return ""
        return "failed" if self.share >= bounds.fail else "warned"


def windows(rows: Sequence[BatchRow], still_open: Mapping[Place, int] | None = None) -> Iterator[Window]:
    """What is judged together of some source batches, which come in the order of their commits.

    `still_open`: by batch, how many of its refused rows nobody decided about; all of them, where it is None.
    """
    before = Window(0, 0, 0)
    for run_id, group in groupby((row for row in rows if row.kind == "source"), key=lambda row: row.run_id):
        own = _sum(list(group), run_id, still_open)
        before = Window(before.records + own.records, before.refused + own.refused, before.open + own.open)
        yield from (own, before)


def _sum(rows: Sequence[BatchRow], run_id: str, still_open: Mapping[Place, int] | None) -> Window:
    left = sum(row.quarantined if still_open is None else still_open.get(row.place, 0) for row in rows)
    return Window(sum(row.records for row in rows), sum(row.quarantined for row in rows), left, run_id)


def worst(bounds: QuarantineBounds, found: Sequence[Window]) -> tuple[State, Window | None]:
    """The state of the worst window, and that window; of those that are as bad, one run's rather than all, the largest
    share."""
    ranked = sorted(found, key=lambda one: (_RANK.index(one.state(bounds)), bool(one.run), one.share))
    return (ranked[-1].state(bounds), ranked[-1]) if ranked else ("", None)


def judged(request: Request, state: Unpublished) -> list[Expectation]:
    """The verdict on the source batches that are in the target and not published, in a list; none where they had no
    record. Reads the ledger and, where rows were decided about, the quarantine; needs no engine.
    """
    layout, bounds = request.layout, request.flow_spec.quarantine
    rows = unpublished_rows(layout, state)
    found = list(windows(rows))
    if not found or not found[-1].records:
        return []
    if worst(bounds, found)[0] and log_of(layout, layout.resolutions).exists:
        found = list(windows(rows, open_rows(layout, rows)))
    return [_verdict(request, rows, found)]


def unpublished_rows(layout: FlowLayout, state: Unpublished) -> list[BatchRow]:
    """The ledger's rows of source batches that are not published, of the newest generation that has any.

    A newer generation reads all input again, under today's contract: what it refuses counts, and nothing twice.
    """
    after = -1 if state.published is None else state.published.version
    rows = [row for row in ledger_table.source_after(layout, after) if row.table_version <= state.version]
    newest = max((row.generation for row in rows), default=0)
    return [row for row in rows if row.generation == newest]


def open_rows(layout: FlowLayout, rows: Sequence[BatchRow]) -> dict[Place, int]:
    """By batch, how many of its refused rows are open. A row that an earlier generation refused first counts, too."""
    cuts = {row.cut: row for row in rows if row.quarantined}
    if not cuts:
        return {}
    sql = f"select path, cut from t where cut in ({', '.join(str(int(cut)) for cut in cuts)})"
    files = {row["path"]: row["cut"] for row in log_of(layout, layout.intake).query(sql).to_pylist()}
    found: dict[Place, int] = {}
    for path, number in quarantine.open_by_file(layout, list(files)).items():
        place = cuts[files[path]].place
        found[place] = found.get(place, 0) + number
    return {row.place: min(row.quarantined, found.get(row.place, 0)) for row in cuts.values()}


def _verdict(request: Request, rows: Sequence[BatchRow], found: Sequence[Window]) -> Expectation:
    bounds = request.flow_spec.quarantine
    state, window = worst(bounds, found)
    window = window if state and window else found[-1]
    first = first_refused(request.layout, rows) if state else None
    of_run = f" by run {window.run}" if window.run and len(found) > 2 else ""
    told = f"{percent(window.share)} of the records were refused{of_run}; {wanted(bounds)}"
    return Expectation(
        name=REFUSED_SHARE,
        success=state != "failed",
        scope="input",
        unexpected=window.open,
        judged=window.records,
        sample=[place_of(first)] if first else [],
        detail="; ".join([told, *_about(request.flow_spec, first)]),
        judged_by="the ledger",
    )


def wanted(bounds: QuarantineBounds) -> str:
    """What the pipeline file allows, in words."""
    return f"warns from {percent(bounds.warn)}, fails from {percent(bounds.fail)}"


def told(flow: FlowSpec, layout: FlowLayout, rows: Sequence[BatchRow]) -> tuple[State, list[Finding]]:
    """What a check will make of these batches, if nobody decides, and the finding that a drain leaves about them.

    The finding comes from `warn` on, however few records there were.
    """
    found = list(windows(rows))
    state, window = worst(flow.quarantine, found)
    window = window if state and window else found[-1] if found else None
    if window is None or not window.refused or (not state and window.share < flow.quarantine.warn):
        return state, []
    first = first_refused(layout, rows)
    what = f"{count(window.refused)} of {count(window.records, 'record')} refused ({percent(window.share)})"
    listing = f"draindown quarantine list {layout.pipeline} --flow {layout.flow}"
    subject, detail = place_of(first) if first else layout.quarantine, "; ".join([what, *_about(flow, first)])
    return state, [Finding(kind="refused", subject=subject, detail=detail, next=listing)]


def first_refused(layout: FlowLayout, rows: Sequence[BatchRow]) -> dict[str, Any] | None:
    """The first row that these source batches refused, by file and position; None where the quarantine has none."""
    batches = {(row.generation, row.batch) for row in rows if row.kind == "source" and row.quarantined}
    if not batches:
        return None
    generation = max(number for number, _ in batches)
    numbers = ", ".join(str(int(batch)) for of, batch in batches if of == generation)
    where = f"kind = 'source' and generation = {int(generation)} and batch in ({numbers})"
    sql = f"select {', '.join(_SHOWN)}, substr(raw, 1, 2000) as raw from t where {where}"
    found = log_of(layout, layout.quarantine).rows(f"{sql} order by batch, file, position limit 1")
    return found[0] if found else None


def place_of(row: Mapping[str, Any]) -> str:
    """Where a refused row came from, as editors open it."""
    return f"{row['file']}:{row['position']}"


def _about(flow: FlowSpec, first: Mapping[str, Any] | None) -> list[str]:
    """Why the first row was refused, and what may help, as far as that is known."""
    if first is None:
        return []
    reason = ":".join(filter(None, (first["reason"], first["field"])))
    why = f"{reason}, {first['detail']}" if first["detail"] else reason
    return list(filter(None, (f"the first: {why}", hint(flow, first))))
