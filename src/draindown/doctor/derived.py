"""Examination of what is between flows: the source of a derived flow, and the readers of a flow's
table.
"""

from __future__ import annotations

from datetime import datetime

from draindown.base.clock import now
from draindown.base.formatting import age, count
from draindown.config.derived import DerivedFlow
from draindown.doctor.model import Desk
from draindown.flow import generations, proven
from draindown.runs.request import Request
from draindown.sources import intake
from draindown.sources.tables import late, readers, registered
from draindown.sources.tables.late import Place
from draindown.sources.tables.registered import BEHIND, GONE, Waiting
from draindown.sources.tables.source import part_way


def look_at_source(desk: Desk, flow: DerivedFlow) -> None:
    """Examine what a derived flow has yet to read, and how much of a range of versions is done.

    Raises TerminalError like `Tables.look`: the source is another table, or lost what was not read
    yet.
    """
    first = desk.checkpoint.first_unread
    if (
        flow.allowed_lateness is not None
    ):  # else rows that were once late are not: all of them count
        _look_at_late(desk, generations.first_unread(desk.layout, desk.generation))
    found = desk.source.look(desk.layout, desk.generation, first, now())
    done = part_way(desk.layout, desk.generation, first - 1)
    said = [f"{count(intake.newest(desk.layout, desk.generation), 'slice')} pinned", *found.reasons]
    said += [f"{done[0]} of {done[1]} buckets of a range of versions done"] if done else []
    desk.say("source", "; ".join(said))
    _look_at_proof(desk)
    for finding in found.findings:
        desk.note(
            f"source-{finding.kind}", "source", f"{finding.subject} {finding.detail}", finding.next
        )


def _look_at_late(desk: Desk, first: int) -> None:
    sums = late.counts(Place(desk.layout, desk.generation, first))
    if any(sums.values()):
        desk.say("late", ", ".join(f"{count(number)} {state}" for state, number in sums.items()))
    if sums["open"]:
        text = f"{count(sums['open'], 'row')} came later than the flow accepts, and nobody has decided about them"
        where = f"draindown late list {desk.layout.pipeline}/{desk.layout.flow}"
        desk.note("late-rows", "late", text, where)


def _look_at_proof(desk: Desk) -> None:
    last, table = proven.newest(desk.layout), desk.layout.tables.target
    desk.say("proof", str(last) if last else "never proven")
    if last is None or last.holds or not table.exists or table.id != last.table_id:
        return
    if last.is_of(table):
        text = f"the table is not what its query gives: {last.differs}"
        desk.wrong("proof-failed", "proof", text, desk.compare)
    else:
        text = f"{last.differs} in version {last.table_version}; nobody has proven version {table.version} since"
        desk.note("proof-outdated", "proof", text, desk.command("audit"))


def look_at_readers(desk: Desk, request: Request) -> None:
    """Examine who reads the flow's table, how far each of them is behind, and whether the table
    serves them.
    """
    declared, found = readers.readers(request), registered.waiting(desk.layout)
    if not declared and not found:
        return
    told = [
        f"{one.reader} from version {one.reader.version} on{_behind(one, now())}" for one in found
    ]
    begun = {str(one.reader) for one in found}
    told += [f"{one} has not begun" for one in map(str, declared) if one not in begun]
    desk.say("readers", ", ".join(told))
    if lacking := readers.lacking(request, desk.layout):
        desk.note("feed-off", "readers", lacking, desk.command("run"))
    for one in found:
        _look_at_reader(
            desk, one, is_declared=readers.may_read(request, one.reader.pipeline, one.reader.flow)
        )


def _behind(one: Waiting, at: datetime) -> str:
    return f", {age(one.age(at).total_seconds())} behind" if one.since else ""


def _look_at_reader(desk: Desk, one: Waiting, *, is_declared: bool) -> None:
    reader, at = one.reader, now()
    if reader.table_id != desk.layout.tables.target.id:
        text = f"{reader} has read an earlier table of this name, and does not know the one that is there"
        desk.note("reader-of-other-table", "readers", text, _run(one))
    if not is_declared:
        text = f"no flow of the project reads this table as {reader} did: what it has not read is kept all the same"
        name = (
            reader.flow
            if reader.pipeline == desk.layout.pipeline
            else f"{reader.pipeline}/{reader.flow}"
        )
        forget = f"draindown compact {desk.layout.pipeline}/{desk.layout.flow} --drop-reader {name} --yes"
        desk.note("reader-undeclared", "readers", text, forget)
    elif one.age(at) >= GONE:
        text = f"{reader} has not read what changed since {one.since:%Y-%m-%d}: it is not kept for it any more"
        told = _run(one) if reader.sinks else f"draindown doctor {reader.pipeline}/{reader.flow}"
        desk.wrong("reader-gone", "readers", text, told)
    elif one.age(at) >= BEHIND:
        text = f"{reader} has not read what changed since {one.since:%Y-%m-%d}: old files stay for it until it is "
        desk.note("reader-behind", "readers", f"{text}{GONE.days} days", _run(one))


def _run(one: Waiting) -> str:
    if one.reader.sinks:
        return (
            f"draindown sink list {one.reader.pipeline}/{one.reader.flow}   # names what to resync"
        )
    return f"draindown run {one.reader.pipeline}/{one.reader.flow}"
