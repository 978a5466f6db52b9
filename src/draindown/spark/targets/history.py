"""History: the target holds one row per run of equal values of a key; what no row holds whole is a
hidden event.

the greatest event at each sequence of the batch → known events of its keys → judged → folded → what
differs → write hidden events → MERGE
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType, TimestampType

from draindown.base.errors import TerminalError
from draindown.config.history import History
from draindown.config.names import END_AT, START_AT, is_own
from draindown.ledger.rows import BatchRow
from draindown.ledger.target_log import verify_written
from draindown.sinks.port import FATE as SENT
from draindown.spark.contract.origin import arrived
from draindown.spark.frames import persisted
from draindown.spark.session import configured
from draindown.spark.sql import CHANGED_AT, literal, quoted
from draindown.spark.targets import delta_target, events, folding, memory, resolution, withheld
from draindown.spark.targets.definition import differing, last_definition, ways_on
from draindown.spark.targets.delta_target import Clauses, Writer
from draindown.spark.targets.events import WHY, Shape
from draindown.spark.targets.neighbourhood import (
    Neighbourhood,
    candidates,
    joining,
    neighbourhood,
    settings,
)
from draindown.spark.targets.pruning import Pruning
from draindown.spark.targets.resolution import FATE
from draindown.spark.targets.strategy import Accepted
from draindown.spark.tuning import TUNING


@dataclass(frozen=True)
class _Known:
    """The part of a history that a batch can change: rows, all events that are known of them, and
    the literal bound.
    """

    rows: DataFrame | None
    events: DataFrame | None
    bound: str | None


class Historical:
    """The strategy of a target that keeps the history of each key."""

    def stored(self, accepted: Accepted) -> DataFrame:
        """Return the accepted rows as a history has them: the keys, start and end, the other
        columns, `_changed_at`.
        """
        goal, rows = (
            accepted.writer.flow.target,
            arrived(accepted.rows, accepted.blocks).drop("_delete"),
        )
        at = folding.sequence(goal.sequence_by)
        timed = rows.withColumn(START_AT, at).withColumn(END_AT, F.when(F.lit(False), at))
        others = [name for name in rows.columns if name not in goal.keys]
        ordered = timed.select(*map(quoted, (*goal.keys, START_AT, END_AT, *others)))
        return ordered.withColumn(CHANGED_AT, F.lit(accepted.changed_at))

    @contextmanager
    def resolve(self, accepted: Accepted, row: BatchRow) -> Iterator[Folded]:
        """Judge each event beside the known ones of its key, fold them, and compare the runs with
        the table's rows.
        """
        shape = _shape(accepted)
        row = replace(row, form="history", history=_definition(shape))
        near = neighbourhood(accepted, row)
        with (
            configured(accepted.rows.sparkSession, settings(accepted, row, near)),
            ExitStack() as kept,
        ):
            by = [*shape.keys, *shape.sequence_by]
            arrivals = arrived(accepted.rows, accepted.blocks)
            new = _kept(resolution.newest(arrivals, by, [], shape.content), kept)
            known = _known(accepted, shape, near, new, folding.sequence(shape.sequence_by), kept)
            out = _withheld(accepted, shape, accepted.releases)
            judged = _kept(
                events.judged(known.events, new, shape, out, released=bool(accepted.releases)), kept
            )
            row = replace(row, **_by_fate(events.fates(judged)))
            yield _folded(accepted, shape, row, near, judged, known, kept)

    @contextmanager
    def withdrawal(
        self, writer: Writer, rows: DataFrame, row: BatchRow, pruning: Pruning
    ) -> Iterator[Folded]:
        """Withhold all events of the rows, and fold the others of their keys: neighbours may
        join.
        """
        assert row.changed_at is not None, "each batch has a stamp"
        accepted = Accepted(writer, rows, (), row.records, 0, pruning, row.changed_at, TUNING)
        shape = _shape_of_table(accepted)
        near = neighbourhood(accepted, row)
        with configured(rows.sparkSession, settings(accepted, row, near)), ExitStack() as kept:
            known = _known(accepted, shape, near, rows, F.col(START_AT), kept)
            before = known.events
            assert before is not None, "the rows are in the table"
            out, none = (
                _withheld(accepted, shape),
                before.where(F.lit(False)).withColumnRenamed(folding.GONE, "_delete"),
            )
            now = events.folded(events.judged(before, none, shape, out), shape)
            leaving = _kept(events.of_runs(now, rows, shape), kept)
            both = leaving if out is None else leaving.unionByName(out)
            judged = _kept(events.judged(before, none, shape, both), kept)
            number = leaving.count()
            row = replace(
                row,
                form="history",
                history=_definition(shape),
                records=number,
                applied=number,
                deleted=0,
            )
            yield replace(_folded(accepted, shape, row, near, judged, known, kept), leaving=leaving)


def _known(
    accepted: Accepted,
    shape: Shape,
    near: Neighbourhood,
    of: DataFrame,
    at: Column,
    kept: ExitStack,
) -> _Known:
    """Return what the events of `of` can change. `at`: their sequence. The rows stay persisted
    until `kept` closes.
    """
    times, bound = events.since(of, at, shape), _bound(of, at)
    rows, hidden = (
        candidates(accepted, near, near.held),
        None if near.memory is None else near.memory.rows,
    )
    if rows is not None:
        rows = rows if bound is None else rows.where(_ends_after(END_AT, bound))
        rows = _kept(events.rows_since(rows, times, shape), kept)
    if hidden is not None:
        few = accepted.number <= accepted.tuning.sent
        hidden = events.hidden_since(_widened(accepted, shape, hidden), rows, times, shape, few=few)
        hidden = hidden.withColumnRenamed("_delete", folding.GONE)
    return _Known(rows, events.known(rows, hidden, shape), bound)


def _bound(of: DataFrame, at: Column) -> str | None:
    """Return the least sequence as a literal of SQL, by which Delta skips files; None for a type
    without one.
    """
    kind = of.select(at.alias("at")).schema["at"].dataType
    # not as text, of which an hour stands for two when clocks go back
    if isinstance(kind, TimestampType):
        found = of.agg(F.min(F.unix_micros(at))).collect()[0][0]
        return None if found is None else f"timestamp_micros({found})"
    if kind.typeName() not in _EXACT:
        return None
    found = of.agg(F.min(at).cast("string")).collect()[0][0]
    return None if found is None else f"cast({literal(found)} as {kind.simpleString()})"


_EXACT = ("byte", "short", "integer", "long", "date", "decimal")


def _ends_after(column: str, bound: str) -> str:
    return f"({column} is null or {column} >= {bound})"


def _widened(accepted: Accepted, shape: Shape, hidden: DataFrame) -> DataFrame:
    """Return hidden events with columns that the table got since they were written: NULL."""
    missing = [name for name in shape.columns if name not in hidden.columns]
    if not missing:
        return hidden
    schema = _stored(accepted)
    return hidden.withColumns({name: F.lit(None).cast(schema[name].dataType) for name in missing})


def _stored(accepted: Accepted) -> StructType:
    spark = accepted.rows.sparkSession
    return spark.read.format("delta").load(accepted.writer.layout.tables.target.path).schema


def _withheld(accepted: Accepted, shape: Shape, besides: Sequence[str] = ()) -> DataFrame | None:
    """Return the events that are withheld; None if no row was ever withdrawn."""
    spark, writer = accepted.rows.sparkSession, accepted.writer
    schema = _stored(accepted)
    wanted = StructType([schema[name] for name in shape.columns])
    return withheld.rows(spark, writer, wanted, besides)


def _folded(
    accepted: Accepted,
    shape: Shape,
    row: BatchRow,
    near: Neighbourhood,
    judged: DataFrame,
    known: _Known,
    kept: ExitStack,
) -> Folded:
    """Fold judged events, and compare them with the table's rows. Frames stay persisted until
    `kept` closes.
    """
    folded = _kept(events.folded(judged, shape), kept)
    stamp = F.lit(accepted.changed_at)
    different = _kept(
        events.difference(folded, known.rows, shape).withColumn(CHANGED_AT, stamp), kept
    )
    steps, hidden = events.account(different, folded)
    row = replace(row, **_by_step(steps), hidden=hidden)
    return Folded(accepted, shape, folded, different, row, near.is_large, known.bound)


def _kept(frame: DataFrame, kept: ExitStack) -> DataFrame:
    kept.enter_context(persisted(frame))
    return frame


def _shape(accepted: Accepted) -> Shape:
    """Return the columns of the table's events, by the spec; of events that come back by what they
    were folded by.

    Raises TerminalError `column-missing`, `history-changed`.
    """
    if accepted.releases:
        return _shape_of_table(accepted)
    part = accepted.writer.flow.target.history
    assert part is not None, "the kind of the target is history"
    own = [
        name for name in accepted.rows.columns if not is_own(name) and name not in accepted.added
    ]
    _refuse_unknown(accepted, part, own)
    shape = _shaped(accepted, part.tracked(own))
    _refuse_changed(accepted.writer, shape, last_definition(accepted.writer, "history"))
    return shape


def _shape_of_table(accepted: Accepted) -> Shape:
    """Return the columns of the table's events, by which the newest batch folded them."""
    part = accepted.writer.flow.target.history
    last = last_definition(accepted.writer, "history")
    assert part is not None, "the kind of the target is history"
    tracked = last["tracked"] if last is not None else part.tracked([*accepted.writer.flow.columns])
    shape = _shaped(accepted, tracked)
    _refuse_changed(accepted.writer, shape, last)
    return shape


def _shaped(accepted: Accepted, tracked: Sequence[str]) -> Shape:
    writer, spark = accepted.writer, accepted.rows.sparkSession
    goal, held = (
        writer.flow.target,
        delta_target.columns_of(spark, writer.layout.tables.target.path),
    )
    columns = [name for name in held if name not in (START_AT, END_AT, CHANGED_AT)]
    added = accepted.added or delta_target.added_columns(spark, writer)
    content = [name for name in resolution.order(columns, added) if name not in goal.essential]
    return Shape(goal.keys, goal.sequence_by, columns, content, tracked)


def _refuse_unknown(accepted: Accepted, part: History, columns: list[str]) -> None:
    """Refuse columns of `track_history` that the transform does not give."""
    said = [name for place, name in part.named if place[0] == "track_history"]
    missing = [name for name in said if name not in columns]
    if not missing:
        return
    flow, layout = accepted.writer.flow, accepted.writer.layout
    raise TerminalError(
        "column-missing",
        tried=f"find the columns of track_history in what {flow.transform or 'the contract'} gives",
        found=f"no {', '.join(missing)} among {', '.join(columns)}",
        next=f"draindown run {layout.pipeline}   # once it gives them",
    )


def _definition(shape: Shape) -> str:
    """Return what the fold depends on, as JSON."""
    rest = [name for name in shape.content if name not in shape.tracked]
    said = {
        "keys": shape.keys,
        "sequence_by": shape.sequence_by,
        "tracked": shape.tracked,
        "untracked": rest,
    }
    return json.dumps(said, separators=(",", ":"))


def _refuse_changed(writer: Writer, shape: Shape, was: Mapping[str, Sequence[str]] | None) -> None:
    """Refuse to fold events of some keys otherwise than those of all others were. A new column may
    be tracked.

    `was`: what the newest batch folded by; None if there is none.

    Raises TerminalError `history-changed`.
    """
    if was is None:
        return
    held = {*was["tracked"], *was["untracked"], *was["keys"], *was["sequence_by"]}
    now = {"keys": shape.keys, "sequence_by": shape.sequence_by}
    now["tracked"] = [name for name in shape.tracked if name in held]
    if changed := differing(was, now):
        raise TerminalError(
            "history-changed",
            tried=f"fold events into {writer.layout.tables.target.path}",
            found=changed,
            changed="nothing of this batch is in the table",
            next=ways_on(writer, "folds all input anew"),
        )


def _by_fate(fates: Mapping[str, int]) -> dict[str, Any]:
    return {
        "applied": fates["applied"],
        "superseded": fates["superseded"],
        "duplicate": fates["duplicate"],
    }


def _by_step(steps: Mapping[str, int]) -> dict[str, Any]:
    """Return the account of rows, and its sums."""
    acts = dict.fromkeys(("insert", "update", "delete"), 0)
    for why, number in steps.items():
        acts[events.WHYS[why]] += number
    return {
        **steps,
        "inserted": acts["insert"],
        "updated": acts["update"],
        "deleted": acts["delete"],
    }


@dataclass(frozen=True)
class Folded:
    """The change of a batch of events: the events of its keys with their runs, and the rows that
    differ. Persisted.

    `bound`: the literal before which no row of the table ends that the batch concerns; None for a
    type without one. `leaving`: the events that a withdrawal takes out.
    """

    accepted: Accepted
    shape: Shape
    events: DataFrame
    different: DataFrame
    row: BatchRow
    is_large: bool
    bound: str | None = None
    leaving: DataFrame | None = None

    @property
    def kept(self) -> DataFrame:
        """The events that a withdrawal takes out."""
        assert self.leaving is not None, "only a withdrawal takes events out"
        return self.leaving

    def remember(self) -> None:
        """Append the events that no row holds whole after the batch. Idempotent."""
        writer, number = self.accepted.writer, self.row.hidden
        if number or writer.holds(writer.layout.tables.hidden.path, "hidden"):
            hidden = events.unseen(self.events, self.shape).withColumnRenamed(
                folding.GONE, "_delete"
            )
            memory.append(writer, hidden, self.accepted.changed_at)
            verify_written(self.row, writer.layout.tables.hidden.path, number, "hidden events")

    def changes(self, was: Mapping[str, Column]) -> DataFrame:
        """Return the rows that differ. Not used: a pipeline file with a history has no sink of
        rows.
        """
        act = F.when(F.col(FATE) == "delete", "delete").otherwise("upsert")
        rows = (
            self.different.withColumn("_act", act).drop(FATE, WHY).withColumnRenamed("_act", SENT)
        )
        return rows.withColumns({name: F.lit(None).cast("boolean") for name in was})

    def write(self, row: BatchRow) -> None:
        """MERGE the rows that differ. If there are none, commit the ledger row with an empty
        append.
        """
        writer, spark = self.accepted.writer, self.different.sparkSession
        with configured(spark, joining(self.accepted, spark) if self.is_large else {}):
            if row.inserted or row.updated or row.deleted:
                on = " AND ".join(
                    f"t.{quoted(name)} = s.{quoted(name)}" for name in self.shape.row_keys
                )
                on += "" if self.bound is None else f" AND {_ends_after(f't.{END_AT}', self.bound)}"
                clauses = Clauses(
                    *(f"s.{FATE} = '{act}'" for act in ("delete", "update", "insert"))
                )
                delta_target.merge(
                    writer, self.different, on, clauses, self.accepted.pruning, row.as_metadata()
                )
            else:
                nothing = self.different.where(F.lit(False)).drop(FATE, WHY)
                delta_target.append(writer, nothing, row.as_metadata())
