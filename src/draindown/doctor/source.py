"""Examination of a source that deletes what it holds, and of the raw records that the lake keeps of
it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping
from datetime import UTC, datetime, timedelta

from draindown.base.clock import now
from draindown.base.formatting import age, count, size
from draindown.base.ranges import Range, joined, minus
from draindown.config.models import PipelineSpec
from draindown.config.project import relative
from draindown.config.schedule import next_time
from draindown.doctor.model import Desk
from draindown.flow import generations
from draindown.flow.health import seconds_since
from draindown.lake.lost_files import lost_files
from draindown.lake.table import moment
from draindown.ledger import table as ledger_table
from draindown.recovery import losses
from draindown.runs.request import Request
from draindown.sources import intake
from draindown.sources.port import Look, Perishable, left_of, located, missing_anew
from draindown.sources.slices import Unit

_FIRST_DAYS = timedelta(days=1)
"""The day that is being dropped, or on which keeping may have begun, is not whole."""


def look_at_files(desk: Desk) -> None:
    """Examine whether the directory that held the files of earlier runs is there: each run stops
    where it is not.
    """
    if desk.checkpoint.last_offset is not None and (lacking := desk.source.out_of_reach()):
        desk.say("source", "not there")
        desk.wrong("source-missing", "source", *lacking)


def look_at_place(desk: Desk, request: Request) -> None:
    """Note files of an append flow whose place depends on that of the project: they are known by
    absolute paths.
    """
    if not relative(request.spec, request.flow) or request.declared.target.kind.idempotent:
        return
    found = f"`files` is relative to {request.root}: in another directory of the project, known files count as moved"
    desk.note(
        "relative-files",
        "source",
        found,
        f"write an absolute path, then: draindown plan {request.spec.pipeline}",
    )


def look_at_input(desk: Desk, request: Request) -> None:
    """Examine whether the source answers, holds what was not read, and keeps it until the next
    runs.

    Raises DraindownError like `Source.look` and `Source.refuse_lost`.
    """
    if lacking := desk.source.out_of_reach():
        desk.say("source", "out of reach from here")
        desk.unlooked.append(f"source: {lacking[0]}; {lacking[1]}")
        return
    first, at = desk.checkpoint.first_unread, now()
    found = desk.source.look(desk.layout, desk.generation, first, at)
    waits = f"{count(found.units, found.unit)} in {count(len(found.parts), 'partition')} wait"
    seconds = seconds_since(found.oldest, at)
    oldest = "" if seconds is None else f", the oldest for {age(seconds)}"
    kept = f"; kept for {age(found.keeps)}" if found.keeps is not None else ""
    desk.say("source", waits + oldest + kept)
    for finding in found.findings:
        desk.note(
            f"source-{finding.kind}", "source", f"{finding.subject}: {finding.detail}", finding.next
        )
    _look_at_schedule(desk, request.spec, found, at)
    if desk.at_work:
        return
    desk.source.refuse_lost(desk.layout, desk.generation, first)
    if desk.source.perishable:
        _look_at_losses(
            desk, desk.source.perishable, {**losses.reading(request), desk.generation: first}
        )


def _look_at_losses(desk: Desk, source: Perishable, reading: Mapping[int, int]) -> None:
    for generation, unread in reading.items():
        if lost := source.losses(generation, unread):
            shown = "; ".join(f"{name}: {what}" for name, what in list(lost.items())[:3])
            whose = (
                "a batch"
                if generation == desk.generation
                else f"the rebuild of generation {generation}"
            )
            text = f"{count(len(lost), 'range')} pinned for {whose} and gone: {shown}"
            desk.wrong("input-lost", "source", text, desk.command("input list"))


def _look_at_schedule(desk: Desk, spec: PipelineSpec, found: Look, at: datetime) -> None:
    if spec.schedule is None:
        return
    zone = spec.airflow.timezone
    following = next_time(spec.schedule, at, zone)
    between = (next_time(spec.schedule, following, zone) - following).total_seconds()
    if found.keeps is not None and found.keeps <= between:
        text = f"the source keeps what arrives for {age(found.keeps)}, and runs are {age(between)} apart: what arrives "
        help = (
            f"draindown validate {desk.layout.pipeline}   # once `schedule` has runs more "
            f"often, or records stay longer"
        )
        desk.wrong(
            "retention-below-schedule",
            "source",
            f"{text}after a run may be gone before the next",
            help,
        )
    elif found.expires is not None and found.expires <= following.timestamp():
        gone = datetime.fromtimestamp(found.expires, UTC)
        text = f"the first of what waits may be deleted from {gone:%Y-%m-%d %H:%M} UTC on, before the next run"
        desk.wrong("backlog-expires", "source", text, desk.command("run"))


def look_at_raw(desk: Desk, request: Request) -> None:
    """Examine the raw records: whether their files are there, and whether they and the source hold
    what was read.
    """
    keep, log = request.flow_spec.source.raw_for, desk.layout.tables.raw
    if not log.exists:
        desk.say("raw records", "none are kept" if keep is None else "none yet")
    else:
        files = log.files()
        held = size(sum(file["size_bytes"] for file in files))
        desk.say("raw records", f"{held}, {f'kept for {age(keep)}' if keep else 'no longer kept'}")
        if missing := lost_files(log):
            text = f"{count(len(missing), 'data file')} gone, such as {missing[0]}: what a batch reads from them fails"
            desk.wrong(
                "raw-files-gone",
                "raw records",
                text,
                f"restore {desk.layout.tables.raw.path} from a copy, as a whole",
            )
    if desk.at_work or desk.source.out_of_reach():
        return
    read = [
        one
        for one in intake.slices(desk.layout, desk.generation)
        if one.number < desk.checkpoint.first_unread
    ]
    units = left_of(
        desk.source, [unit for one in read for unit in one.units if unit.until > unit.start]
    )
    if log.exists and keep:
        _look_at_days(desk, keep, {one.number for one in read})
    anew = generations.next_number(desk.layout, desk.generation)
    if gone := missing_anew(desk.source, units, desk.generation, anew):
        text = f"a new generation would not read {count(len(gone), 'range')} of {len(units)} that were read, such as "
        again = "reset" if request.declared.target.kind.idempotent else "rebuild"
        help = desk.command(again, "   # its plan says how much it would do without")
        desk.note("reset-lacks-input", "raw records", text + next(iter(gone)), help)


def _look_at_days(desk: Desk, keep: int, read: set[int]) -> None:
    """Look for ranges that were read on one of the days that are kept, for the first time, and that
    are not there.
    """
    oldest = desk.layout.tables.raw.rows("select min(day) as day from t")[0]["day"]
    if oldest is None:
        return
    since = max(
        datetime(oldest.year, oldest.month, oldest.day, tzinfo=UTC), now() - timedelta(seconds=keep)
    )
    first = since + _FIRST_DAYS
    units = _read_by(
        desk, f"generation = {desk.generation} and started_at >= {moment(first)}", read
    )
    absent = [one for one in located(desk.source, units) if not one.kept and one.until > one.start]
    before = _read_before(desk, first) if absent else {}
    lacking = [
        f"{one.name}:{start}-{until}"
        for one in absent
        for start, until in minus([(one.start, one.until)], before.get((one.name, one.log), []))
    ]
    if lacking:
        text = f"{count(len(lacking), 'range')} read since {since:%Y-%m-%d} are not there, such as {lacking[0]}"
        desk.note("raw-incomplete", "raw records", text, desk.command("audit"))


def _read_before(desk: Desk, at: datetime) -> dict[tuple[str, str], list[Range]]:
    """Return what earlier generations read before a moment, by unit and log: raw records have the
    day of the first.
    """
    found: dict[tuple[str, str], list[Range]] = defaultdict(list)
    for unit in _read_by(desk, f"generation < {desk.generation} and started_at < {moment(at)}"):
        found[unit.name, unit.row.get(intake.LOG) or ""].append((unit.start, unit.until))
    return {log: joined(some) for log, some in found.items()}


def _read_by(desk: Desk, where: str, numbers: Container[int] | None = None) -> list[Unit]:
    """Return the units that batches read, of the ledger rows that `where` (SQL) selects and of
    slices in `numbers`.
    """
    chosen: dict[int, set[int]] = defaultdict(set)
    for row in ledger_table.of_source(desk.layout, where):
        if numbers is None or row.slice in numbers:
            chosen[row.generation].add(row.slice)
    slices = (
        one
        for generation in sorted(chosen)
        for one in intake.slices(desk.layout, generation)
        if one.number in chosen[generation]
    )
    return left_of(desk.source, [unit for one in slices for unit in one.units])
