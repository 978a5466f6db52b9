"""Apply the flow's drift policy to one batch: refuse the batch, record the drift, or add
columns.
"""

from __future__ import annotations

import shlex
from collections import Counter as Sums
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from draindown.base.errors import TerminalError
from draindown.base.formatting import count, printable
from draindown.flow.schema_drift import (
    EMPTY,
    MOST_ADDED,
    NO_VALUE,
    UNSEEN,
    Kind,
    Sighting,
    likely,
    within,
)
from draindown.spark.contract import drift_marks
from draindown.spark.contract.drift_marks import News, Seen
from draindown.spark.contract.parsing import WHY
from draindown.spark.targets import delta_target

if TYPE_CHECKING:
    from draindown.spark.batch.model import Batch, Counted


_SHOWN = 5


@dataclass(frozen=True)
class Found:
    """The drift of a batch.

    Attributes:
        sightings: the drift to record.
        columns: existing and new target columns for fields outside the contract, sorted by name.
        reserved: names of fields that stay in `_rescued_data`.
        unknown: whether an accepted row has a field that the contract does not name.
    """

    sightings: Sequence[Sighting] = ()
    columns: Sequence[str] = ()
    reserved: frozenset[str] = frozenset()
    unknown: bool = False

    def spread(self, good: DataFrame) -> DataFrame:
        """Return the accepted rows with `columns`, whose values move out of `_rescued_data`."""
        if not self.unknown:
            return drift_marks.empty(good, self.columns)
        return drift_marks.spread(good, self.columns, self.reserved)


def look(batch: Batch, frame: DataFrame, counted: Counted) -> Found:
    """Find new and missing fields of a batch. Reads no rows if none has a drift mark.

    Raises TerminalError `drift-failed`.
    """
    policy = batch.writer.flow.drift
    news = _marked(batch, frame, counted) if counted.sum("marked") else News()
    # chosen records of a file say nothing of what the whole file lacks
    if batch.kind == "release":
        news = replace(news, missing=())
    _refuse(
        batch,
        news.new if policy.new_columns == "fail" else (),
        news.missing if policy.missing_columns == "fail" else (),
    )
    if policy.new_columns != "add":
        return Found(_told(batch, counted, news))
    held = delta_target.held_columns(frame.sparkSession, batch.writer)
    own = {name.lower() for name in drift_marks.reserved_in(batch.writer.flow, frame)}
    others = {
        name: kind
        for name, kind in held.items()
        if name.lower() not in own and not name.startswith("_")
    }
    extras = [name for name, kind in others.items() if kind == "string"]
    unknown = counted.sum("unknown") > 0
    if unknown and counted.sum("marked"):
        more = drift_marks.addable(
            frame.where(F.col(WHY).isNull() & ~F.col("_blank")), own | set(others)
        )
        news = News(news.new, news.missing, more.columns, more.many)
    _refuse_too_many(batch, extras, news.columns)
    columns = sorted([*extras, *(one.name for one in news.columns)], key=str.lower)
    return Found(
        _told(batch, counted, news), columns, frozenset(own | (others.keys() - extras)), unknown
    )


def _marked(batch: Batch, frame: DataFrame, counted: Counted) -> News:
    by_age = sorted(batch.input.units, key=lambda unit: (unit.arrived_at, unit.name))
    age = {unit.name: at for at, unit in enumerate(by_age)}
    records: Sums[str] = Sums()
    for group in counted.groups:
        judged = not group["_blank"] and group["reason"] not in drift_marks.NO_RECORDS
        records[group["_unit"]] += group["n"] if judged else 0
    return drift_marks.marked(
        frame, sorted(records, key=lambda unit: age.get(batch.input.name(unit), -1)), records
    )


def _told(batch: Batch, counted: Counted, news: News) -> list[Sighting]:
    columns = {one.name.lower() for one in news.columns}
    marks = {one.name: one for one in news.new}
    gone: dict[str, list[str]] = {}
    for one in news.missing:
        gone.setdefault(one.unit, []).append(one.name)
    places = {(one.spelled, one.block): one.offset for one in batch.input.origins(counted.blocks)}

    def told(kind: Kind, one: Seen, *, record: bool = True) -> Sighting:
        at = one.id + places[one.unit, one.block] if record and batch.kind != "release" else None
        more = {
            "input": batch.input.name(one.unit),
            "position": at,
            "rows": one.rows,
            "type": _type(one, batch),
        }
        with_it = tuple(gone.get(one.unit, ())) if kind.startswith("new") else ()
        return Sighting(kind, one.name, *_of(batch), **more, with_it=with_it)  # type: ignore[arg-type]

    return [
        *(told("many-fields", one) for one in ([news.many] if news.many else [])),
        *(told("new-column", marks.get(one.name, one)) for one in news.columns),
        *(told("missing-column", one, record=False) for one in news.missing),
        *(told("new-field", one) for one in news.new if one.name.lower() not in columns),
    ]


def _of(batch: Batch) -> tuple[int, str, int, str, str]:
    at = batch.first_seen.astimezone(UTC).isoformat()
    return batch.writer.generation, batch.kind, batch.writer.batch, batch.run_id, at


def _refuse(batch: Batch, new: Sequence[Seen], missing: Sequence[Seen]) -> None:
    if not new and not missing:
        return
    found = [
        f"field {_name(one)} is new: {count(one.rows, 'record')}, first in {batch.input.name(one.unit)}"
        for one in new[:_SHOWN]
    ]
    found += [
        f"column {_name(one)} is in no record of {batch.input.name(one.unit)}"
        for one in missing[:_SHOWN]
    ]
    rest = len(new) + len(missing) - len(found)
    next_ = (
        [f"add {', '.join(_typed(one, batch) for one in new[:_SHOWN])} to columns"] if new else []
    )
    policies = [
        key
        for key, seen in (("new_columns: rescue", new), ("missing_columns: allow", missing))
        if seen
    ]
    raise _refused(
        batch, found + ([f"and {rest} more"] if rest else []), next_, policies, [*new, *missing]
    )


def _refuse_too_many(batch: Batch, held: Sequence[str], new: Sequence[Seen]) -> None:
    if len(held) + len(new) <= MOST_ADDED or not new:
        return
    names = ", ".join(_name(one) for one in new[:_SHOWN])
    found = (
        f"fields of the input give the table {len(held)} columns already; {names} and others would make it more "
        f"than {MOST_ADDED}, first in {batch.input.name(new[0].unit)}"
    )
    raise _refused(batch, [found], [], ["new_columns: rescue"], new)


def _refused(
    batch: Batch,
    found: Sequence[str],
    more: Sequence[str],
    policies: Sequence[str],
    seen: Sequence[Seen],
) -> TerminalError:
    layout = batch.writer.layout
    flow, run = f"flow {layout.flow}", f"draindown run {layout.pipeline}/{layout.flow}"
    if layout.staged:  # it goes on by the contract that it began with, and no other
        run = (
            f"draindown rebuild {layout.pipeline}/{layout.flow} --abort --yes   # and begin it anew"
        )
    steps = [f"{one} of {flow}, then: {run}" for one in more]
    steps.append(f"set drift: {{{', '.join(policies)}}} for {flow}, then: {run}")
    if batch.kind == "drain" and batch.input.by_name:
        units = list(dict.fromkeys(batch.input.name(one.unit) for one in seen))
        steps.append(batch.input.leaving_out(units[:_SHOWN]))
    policy = batch.writer.flow.drift
    return TerminalError(
        "drift-failed",
        tried=f"read {count(len(batch.input.units), batch.input.noun)} of {flow} under drift: {{"
        f"new_columns: {policy.new_columns}, missing_columns: {policy.missing_columns}}}",
        found="; ".join(found),
        changed="nothing of this batch was written",
        next=steps,
    )


def _name(one: Seen) -> str:
    return f"`{printable(one.name, 60)}`"


def _typed(one: Seen, batch: Batch) -> str:
    kind = _type(one, batch)
    shown = "TYPE" if kind in (NO_VALUE, EMPTY, UNSEEN) else kind
    # quoted, because the field name comes from the input
    return shlex.quote(f"{printable(one.name, 60)}: {shown}")


def _type(one: Seen, batch: Batch) -> str:
    """Return the likely type of a field; UNSEEN for one within a struct, whose values are not among
    `one.values`.
    """
    flow = batch.writer.flow
    return UNSEEN if within(flow, one.name) else likely(one.values, flow.source.form)
