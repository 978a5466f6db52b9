"""Records that are not at their offsets, as the batch that reads a slice counts them, and the error
for it.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from draindown.base.clock import now
from draindown.base.errors import TerminalError
from draindown.base.formatting import count
from draindown.lake.home import FlowHome
from draindown.sources import raw
from draindown.sources.kafka import accepted
from draindown.sources.kafka.offsets import Loss, Span, without
from draindown.sources.kafka.positions import as_kept, of_kept, span_of
from draindown.sources.slices import Unit

_SHOWN = 5


@dataclass(frozen=True)
class Miscount:
    """The records that a batch read of a partition, and the offsets that its slice pins there."""

    records: int
    offsets: int

    def __str__(self) -> str:
        return f"{count(self.records, 'record')} at {self.offsets:,} offsets"


def miscounted(
    units: Sequence[Unit],
    read: Mapping[str, int],
    gaps: Collection[str],
    may_lack: Sequence[Span],
    kept: Mapping[str, int] | None = None,
) -> dict[str, Miscount]:
    """Return the partitions that gave other numbers of records than they must.

    A partition of `gaps` may give fewer, and any other one by at most the offsets of `may_lack`
    that it pins. `kept`: the number of records that the lake has of units which it keeps, by
    partition; None if they have no gaps.
    """
    most: dict[str, int] = defaultdict(int)
    least: dict[str, int] = defaultdict(
        int, {name: n for name, n in (kept or {}).items() if name not in gaps}
    )
    for unit in units:
        most[unit.name] += unit.until - unit.start
        if unit.name not in gaps and not (unit.kept and kept is not None):
            least[unit.name] += sum(part.size for part in without(span_of(unit), may_lack))
    found = {name: Miscount(read.get(name, 0), offsets) for name, offsets in most.items()}
    return {
        name: one for name, one in found.items() if not least[name] <= one.records <= one.offsets
    }


def lacking(units: Sequence[Unit], wrong: Mapping[str, Miscount]) -> list[Loss]:
    """Return the ranges of the partitions that gave too few records."""
    few = {name for name, one in wrong.items() if one.records < one.offsets}
    return [
        Loss("records-absent", span_of(unit), f"a batch found {wrong[unit.name]}")
        for unit in units
        if unit.name in few and not unit.kept and unit.until > unit.start
    ]


def unexplained(
    layout: FlowHome,
    units: Sequence[Unit],
    read: Mapping[str, int],
    gaps: Collection[str],
    compacted: Callable[[], set[str]] | None,
) -> dict[str, Miscount]:
    """Return the partitions that gave other numbers of records than they must, and that nothing
    explains.

    `gaps`: as for `miscounted`. `compacted`: as for `noted`, whose notes are written; None: nothing
    is.
    """
    may_lack = accepted.may_lack(layout)
    wrong, whole = miscounted(units, read, gaps, may_lack), miscounted(units, read, gaps, ())
    if held := [as_kept(span_of(unit)) for unit in units if unit.kept and unit.name in whole]:
        before, wrong = wrong, miscounted(units, read, gaps, may_lack, raw.counts(layout, held))
        # an audit that comes later may not find them in the lake any more
        if compacted is not None:
            _accept_kept(
                layout, [one for one in held if one.unit in before and one.unit not in wrong]
            )
    return wrong if compacted is None else noted(layout, units, wrong, compacted)


def _accept_kept(layout: FlowHome, held: Sequence[raw.Kept]) -> None:
    found = [
        Loss("records-absent", of_kept(one), "")
        for one in (raw.ranges(layout, held) if held else ())
    ]
    accepted.accept(
        layout, found, by="draindown", note="as many as were counted when they were kept", at=now()
    )


def noted(
    layout: FlowHome,
    units: Sequence[Unit],
    wrong: dict[str, Miscount],
    compacted: Callable[[], set[str]],
) -> dict[str, Miscount]:
    """Write down which ranges lack records, for a person to accept, and return what stays wrong.

    `compacted`: returns the topics that are compacted now. A topic may have become so since a slice
    was pinned, which explains what is absent: it is accepted. Call it under the lease.
    """
    found, before = lacking(units, wrong), accepted.absent(layout)
    if (
        found
        and len({loss.span.place for loss in found}) == len(wrong)
        and {x.span.topic for x in found} <= compacted()
    ):
        accepted.accept(
            layout, found, by="draindown", note="compacted since it was pinned", at=now()
        )
        found, wrong = [], {}
    if found or before:
        mine = list(map(span_of, units))
        others = [loss for loss in before if without(loss.span, mine) == [loss.span]]
        accepted.note_absent(layout, [*others, *found])
    return wrong


def records_absent(
    number: int,
    units: Sequence[Unit],
    wrong: Mapping[str, Miscount],
    layout: FlowHome,
    changed: str,
) -> TerminalError:
    """Return the error for a slice that lacks records."""
    flow = f"{layout.pipeline}/{layout.flow}"
    ranges = [f"--range {shlex.quote(loss.span.range)}" for loss in lacking(units, wrong)[:_SHOWN]]
    accept = (
        f'draindown input discard {flow} {" ".join(ranges)} --note "..." --yes   # goes '
        f"on with what is there; ask "
    )
    return TerminalError(
        "records-absent",
        tried=f"read slice {number} of flow {layout.flow}",
        found="; ".join(f"{name}: {one}" for name, one in list(wrong.items())[:_SHOWN]),
        changed=changed,
        next=[
            f"draindown run {layout.pipeline}   # once the source says `kafka: {{transactional: true}}`, if "
            "producers write in transactions",
            *[f"{accept}who operates the brokers first (cleanup.policy, DeleteRecords)"]
            * bool(ranges),
        ],
    )
