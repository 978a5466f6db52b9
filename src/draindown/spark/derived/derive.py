"""The batches of a derived flow: how one is read, what it writes beside its target, and how its
keys are resolved.

The order of the steps is that of `targets.batch.apply`:

changes of the sources → touched keys → inputs → late rows → the keys' rows at `until`, or what
stands for them → query → difference from the table → commit → ledger
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from draindown.base.errors import TerminalError
from draindown.base.formatting import count
from draindown.ledger import inputs as ledger_inputs
from draindown.ledger.rows import BatchRow, conserve, not_adding_up
from draindown.spark.derived import difference, failing, history, images, notes, recompute, remedies
from draindown.spark.derived.again import Again, again_of, settings_of
from draindown.spark.derived.batch import DeriveBatch
from draindown.spark.derived.change import Difference
from draindown.spark.derived.difference import (
    BEFORE,
    DELETE,
    FATE,
    INSERT,
    UNCHANGED,
    UPDATE,
    Counts,
)
from draindown.spark.derived.kind import key_names
from draindown.spark.derived.late import Sieve, keep, keep_none, sieves
from draindown.spark.derived.registry import kind_of
from draindown.spark.derived.resolve import Resolved, resolve
from draindown.spark.derived.scope import Spanned, Touched, spanned
from draindown.spark.derived.standing import standing
from draindown.spark.derived.touched import Work, touched
from draindown.spark.frames import persisted
from draindown.spark.session import configured
from draindown.spark.sql import CHANGED_AT, quoted
from draindown.spark.targets import delta_target
from draindown.spark.targets.batch import SideWrite, apply
from draindown.spark.targets.delta_target import Held
from draindown.spark.targets.strategy import Change

SETTINGS = {"spark.sql.session.timeZone": "UTC"}
"""A derived table may not depend on the zone of a machine."""


def derive(spark: SparkSession, batch: DeriveBatch) -> BatchRow:
    """Apply one batch and return its ledger row. Idempotent: no-op if the target already contains
    the batch.

    Raises TerminalError `ledger-does-not-add-up`, `invalid-derivation`, `result-not-unique`,
    `table-mismatch`, `history-gone`, `rows-miscounted`, `partition-empty`, `group-not-computed`.
    """
    return apply(spark, batch, lambda kept: read(spark, batch, kept))


@dataclass(frozen=True)
class Opened:
    """The source tables of a batch. `rows`: at the versions that it reads; `sources`: those of them
    that count.
    """

    count: Sequence[Sieve]
    rows: Sequence[DataFrame]
    sources: Sequence[DataFrame]
    resolved: Resolved


def opened(spark: SparkSession, batch: DeriveBatch, kept: ExitStack) -> Opened:
    """Open the source tables at the versions that a batch reads, and resolve its query. Runs no
    job.
    """
    tables, layout = batch.slice.tables, batch.writer.layout
    kept.enter_context(configured(spark, SETTINGS))
    kept.enter_context(history.kept(layout, {one.path: one.at for one in tables}))
    count = sieves(spark, layout, batch.flow, batch.slice.decided, kind_of(batch.flow).relations)
    rows = [
        images.at(spark, one.path, one.at, sieve.own)
        for one, sieve in zip(tables, count, strict=True)
    ]
    sources = [sieve.counting(one) for one, sieve in zip(rows, count, strict=True)]
    resolved = resolve(
        batch.flow,
        sources,
        _tried(batch),
        remedies.once_corrected(batch),
        batch.places,
        batch.tuning,
    )
    return Opened(count, rows, sources, resolved)


def read(spark: SparkSession, batch: DeriveBatch, kept: ExitStack) -> Derivation:
    """Read the images of the changes, and find the keys that they touch."""
    batch.verify()
    found = opened(spark, batch, kept)
    with configured(spark, batch.tuning.evaluation(batch.slice.rows)):
        try:
            return Derivation(
                touched(found.count, batch, found.rows, found.sources, found.resolved, kept)
            )
        except failing.ERRORS as error:
            if not failing.is_of_data(error):
                raise
            raise remedies.not_computed(
                batch, f"the key of a row: {failing.reason(error)}"
            ) from error


@dataclass(frozen=True)
class Derivation:
    """The work of a batch whose touched keys are known."""

    work: Work
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def side_writes(self) -> list[SideWrite]:
        """The inputs, and rows that came late."""
        work, layout = self.work, self.work.batch.writer.layout
        inputs = SideWrite("inputs", lambda: ledger_inputs.record(layout, work.row, work.read))
        # an earlier attempt may have kept some that are late no more, since the flow was edited
        some = work.late or work.batch.writer.holds(layout.tables.late.path, "late")
        return [inputs, SideWrite("late", lambda: _keep_late(work))] if some else [inputs]

    @contextmanager
    def resolve(self) -> Iterator[Change]:
        """Recompute the touched keys and compare them with the table."""
        work, writer = self.work, self.work.batch.writer
        spark = work.sources[0].sparkSession
        with remedies.source_types_named(work):
            delta_target.prepare(
                spark, writer, StructType(list(work.resolved.schema)).add(CHANGED_AT, "timestamp")
            )
        with ExitStack() as kept:
            work, held, again = prepared(spark, work, kept)
            work = replace(work, row=replace(work.row, reread=sum(one.size.rows for one in again)))
            kept.enter_context(_group_named(work, again))
            yield _recomputed(work, held, again, kept)


def prepared(
    spark: SparkSession, work: Work, kept: ExitStack
) -> tuple[Work, Held | None, list[Again]]:
    """Return the work as narrowed, the table's rows, and what is read again of each source.

    The session has the settings of the comparison until `kept` closes.
    """
    tuning, tables = work.batch.tuning, work.batch.slice.tables
    held = delta_target.held_rows(spark, work.batch.writer.target, work.scope.pruning, narrow=True)
    with configured(spark, tuning.estimating(None if held is None else held.size)):
        work = narrowed(work, held, kept)
    if held is not None and isinstance(work.scope, Spanned):
        held = held.within(work.scope.times)
    again = [again_of(work, at) for at in range(len(tables))]
    kept.enter_context(configured(spark, settings_of(spark, work, held, again)))
    return work, held, again


def narrowed(work: Work, held: Held | None, kept: ExitStack) -> Work:
    """Return the work with the part of its scopes that has to be read again, which the table's rows
    or a memory show.

    A replay reads the scopes whole: it repairs tables, and one that lacks rows does not show where
    these would end.
    """
    kind, scope, writer = work.resolved.kind, work.scope, work.batch.writer
    if writer.ledger_kind != "drain" or not isinstance(scope, Touched):
        return work
    if kind.memory is not None:
        spark = work.sources[0].sparkSession
        return replace(work, scope=kind.memory.narrowed(spark, writer, scope, kept))
    if held is None:
        return work
    if kind.absorbs:
        (relation,), (netted,), (table,) = kind.relations, work.netted, work.batch.slice.tables
        return replace(
            work, scope=standing(relation, scope, netted, held.rows, kept, changes=table.changes)
        )
    if kind.span is None:
        return work
    return replace(work, scope=spanned(scope, kind.span, held.rows, work.scope_keys, kept))


def _tried(batch: DeriveBatch) -> str:
    layout = batch.writer.layout
    return f"resolve the {batch.flow.kind} of flow {layout.flow} of pipeline {layout.pipeline} in Spark"


def _keep_late(work: Work) -> None:
    batch = work.batch
    if work.late:
        keep(batch.writer, work.late, work.resolved.kind, batch.slice.number, batch.run_id)
    else:
        keep_none(batch.writer, work.sources[0].sparkSession)


def _recomputed(
    work: Work, held: Held | None, again: Sequence[Again], kept: ExitStack
) -> Difference:
    """Recompute the keys and compare them with the table. Frames stay persisted until `kept`
    closes.
    """
    kind, sources = work.resolved.kind, [one.possible for one in again]
    keyed = recompute.keyed(kind, sources, work.scope)
    fresh, remembered = (
        (kind.result(*keyed), None) if kind.memory is None else kind.memory.recomputed(keyed, kept)
    )
    fated = recompute.compared(kind, fresh, work.scope, None if held is None else held.rows)
    counts = Counts({}, 0, 0, 0)
    if (
        work.batch.slice.is_fill or work.row.recomputed
    ):  # else nothing changed of what the query reads
        kept.enter_context(persisted(fated))
        parts, schema = work.batch.flow.target.partition_by, work.resolved.schema
        texts = [name for name in parts if schema[name].dataType.typeName() == "string"]
        counts = difference.count(
            fated, kind.row_keys, kind.counted, texts, kind.scope_keys, kind.found
        )
        notes.missed(work.batch, counts)
        _refuse_blank(work, counts.blank)
        _refuse_twice(work, held, counts.twice)
    else:
        remembered = None
    acts = fated.where(F.col(FATE).isin(*difference.ACTS)).withColumn(
        CHANGED_AT, F.lit(work.batch.changed_at)
    )
    return Difference(work, acts.drop(BEFORE), _output(work, counts), held, remembered)


@contextmanager
def _group_named(work: Work, again: Sequence[Again]) -> Iterator[None]:
    """Name the group that Spark can't compute. A table without it, or with its old row, would not
    be the query's.

    Raises TerminalError `group-not-computed`.
    """
    try:
        yield
    except failing.ERRORS as error:
        if not failing.is_of_data(error):
            raise
        kind, sources = work.resolved.kind, [one.possible for one in again]
        names = key_names(kind)
        every = (
            relation.keyed(rows) for relation, rows in zip(kind.relations, sources, strict=True)
        )
        keyed = work.scope.within(next(one for one in every if {*names} <= {*one.columns}), names)
        whole = partial(recompute.result, kind, sources, work.scope)
        found = (
            failing.named(error)
            or f"{failing.failing(whole, work.scope_keys, keyed, names)}: {failing.reason(error)}"
        )
        raise remedies.not_computed(work.batch, found) from error


def _output(work: Work, counts: Counts) -> BatchRow:
    """Return the ledger row with the account of the output. Raises TerminalError if it can't be
    right.
    """
    keys = counts.keys
    row = replace(
        work.row,
        inserted=keys.get(INSERT, 0),
        updated=keys.get(UPDATE, 0),
        deleted=keys.get(DELETE, 0),
        unchanged=keys.get(UNCHANGED, 0),
    )
    found = row.inserted + row.updated + row.deleted + row.unchanged
    empty = 0 if work.batch.slice.is_fill else row.recomputed - counts.scopes
    touched = found + empty
    row = replace(row, recomputed=touched, empty=empty)
    wrong = ["more keys than were touched"] if row.empty < 0 else []
    if row.kind == "drain":  # what a replay touches may be gone from the source and from the table
        # of these keys the source may have no row
        gone = row.deleted if work.batch.slice.is_fill else 0
        wrong += work.resolved.kind.wrong(replace(row, recomputed=touched - gone))
    if wrong:
        raise not_adding_up(row, wrong)
    if row.kind == "drain":
        _refuse_miscounted(work, counts)
    return conserve(row)


def _refuse_twice(work: Work, held: Held | None, number: int) -> None:
    """Refuse keys with several rows, of the query or of the table. Raises TerminalError
    `result-not-unique`.
    """
    if not number:
        return
    whose, mended = (
        f"the query returns several rows for {number}",
        remedies.once_corrected(work.batch),
    )
    if held is not None:
        by_key = (
            work.scope.within(held.rows, work.scope_keys)
            .groupBy(*map(quoted, work.row_keys))
            .count()
        )
        if doubled := by_key.where("count > 1").count():
            whose = f"somebody wrote them or the keys were others before: the table has several rows for {doubled}"
            mended = [_rebuild(work, "")]
    raise _refused(
        work, "result-not-unique", f"{whose} of them; keys are {', '.join(work.row_keys)}", mended
    )


def _refuse_blank(work: Work, blank: Mapping[str, int]) -> None:
    """Refuse keys with a text in a partition column that Delta stores as NULL, another key, or no
    directory can bear.

    `blank`: their number by column and reason. Raises TerminalError `partition-empty`.
    """
    if blank:
        found = "; ".join(
            f"in {count(number, 'key')} partition column {what}" for what, number in blank.items()
        )
        named = " or ".join(dict.fromkeys(what.partition(" has ")[0] for what in blank))
        when = f"   # once {named} is out of partition_by, or NULL in the source where it is such a text"
        raise _refused(work, "partition-empty", found, _rebuild(work, when))


def _rebuild(work: Work, when: str) -> str:
    layout = work.batch.writer.layout
    return f"draindown rebuild {layout.pipeline}/{layout.flow}{when}"


def _refused(work: Work, code: str, found: str, next_: str | Sequence[str]) -> TerminalError:
    layout, changed = work.batch.writer.layout, "nothing of this batch was written"
    tried = f"recompute the keys of flow {layout.flow} of pipeline {layout.pipeline}"
    return TerminalError(code, tried=tried, found=found, changed=changed, next=next_)


def _refuse_miscounted(work: Work, counts: Counts) -> None:
    """Hold what the recomputed keys count against the source rows that came and went.

    A fill has all rows of its keys, whatever the table had. Any other batch adds what came since.
    Raises TerminalError `rows-miscounted`.
    """
    layout, piece, counted = work.batch.writer.layout, work.batch.slice, work.resolved.kind.counted
    before = 0 if piece.is_fill else counts.before
    if counted is None or counts.now == before + work.came:
        return
    read = " and ".join(f"{one.path} at version {one.at}" for one in piece.tables)
    raise TerminalError(
        "rows-miscounted",
        tried=f"recompute {counted} of the keys that changes touch, for flow {layout.flow}",
        found=f"they count {counts.now} rows of {read}. "
        f"Before they counted {before}, and {work.came} came, less those that went",
        changed="nothing of this batch is in the table",
        next=[
            f"draindown audit {layout.pipeline}/{layout.flow}   # names the rows of the table that are wrong",
            f"draindown reset {layout.pipeline}/{layout.flow}   # compares the whole table with its source",
        ],
        in_order=True,
    )
