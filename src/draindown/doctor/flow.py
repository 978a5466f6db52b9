"""Examination of a flow's own documents: lease, generation, checkpoint, intake, replays,
rebuild.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from draindown.base.formatting import count, shortened
from draindown.doctor.model import Desk
from draindown.flow import generations, owner, release_intent, resume
from draindown.flow.health import in_words
from draindown.lake import lake_records, storage
from draindown.lake.home import FlowHome
from draindown.lake.presence import PIN, Lake
from draindown.lease import holder as lease_holder
from draindown.recovery import half_rebuilt, rebuild, replay
from draindown.runs import store
from draindown.runs.report import StepReport
from draindown.sources import intake

_RUNS = 10
_NOT_OF_A_BATCH = ("lease-held", "lease-lost", "stopped")


def look_at_lake(desk: Desk) -> None:
    """Examine whether the flow's directories can be written."""
    error = storage.unwritable(desk.layout)
    desk.say("lake", desk.layout.lake + (", which can't be written" if error else ""))
    if error:
        desk.wrong(error.code, "lake", error.found, error.next[0])


def look_at_presence(desk: Desk, root: Path) -> None:
    """Examine whether the lake is the one that the project has used. Raises TerminalError
    `lake-missing`.
    """
    lake = Lake.look(desk.layout.lake, root, desk.layout.pipeline)
    lake.refuse_missing()
    if lake.own is None:
        return
    desk.say("lake", f"{desk.looked['lake']}, lake {lake.own.id}")
    if not (lake.known or lake.pins or lake_records.keeps_records(root)):
        found = f"{root} keeps no record of its lakes: with the disk of this one not mounted, a run would begin another"
        desk.note(
            "lake-not-on-record",
            "lake",
            found,
            f"export {PIN}={lake.own.id}   # where runs are started",
        )


def look_at_owner(desk: Desk) -> None:
    """Examine whether the tables are those of another flow. Raises TerminalError
    `table-of-another-flow`.
    """
    owner.refuse_other(desk.layout)


def look_at_lease(desk: Desk) -> None:
    """Examine the lease: its holder, and whether the last holder released it in order."""
    holder = lease_holder.holder(desk.layout)
    desk.at_work = holder is not None
    desk.say("lease", f"held by {holder}" if holder else "free")
    if holder:
        found = "a driver is at work: checkpoint, target, ledger and quarantine move and were not compared"
        desk.note("drain-at-work", "lease", found, desk.command("doctor", "   # once it has ended"))
    elif left := lease_holder.left_open(desk.layout):
        found = f"its last holder did not leave in order: {left}; the next driver waits until that is sure, and follows"
        desk.note("stale-lease", "lease", found, f"draindown run {desk.layout.pipeline}")
    elif desk.layout.owner.exists:
        found = "the last driver died without taking its card away; the lease itself is free"
        desk.note("stale-owner-card", "lease", found, f"draindown run {desk.layout.pipeline}")
    for path in lease_holder.unfenced(desk.layout):
        found = f"{path} has features that no fence can be written with: transaction ids alone held back what a driver "
        found += "that died had in flight"
        desk.note("table-without-fence", "lease", found, desk.command("audit"))


def look_at_generation(desk: Desk) -> None:
    """Examine the document that names the live generation."""
    desk.generation = generations.generation(desk.layout)
    card = generations.card(desk.layout, desk.generation)
    begun = f", begun {card.at} by {card.by}" if card and desk.generation > 1 else ""
    left_out = (
        f", without {count(len(card.without), desk.source.unit)}" if card and card.without else ""
    )
    desk.say("generation", f"{desk.generation}{begun}{left_out}")


def look_at_checkpoint(desk: Desk) -> None:
    """Examine the checkpoint of the live generation and compare it with the target.

    Raises TerminalError like `Checkpoint.verify` and `generations.refuse_lost`.
    """
    found = desk.checkpoint
    if desk.at_work:
        return
    found.verify()
    desk.say(
        "checkpoint",
        "not begun" if found.last_commit is None else f"batches up to {found.last_commit} are done",
    )
    newest = desk.layout.tables.target.last(desk.layout.app_id(desk.generation, "rows"))
    generations.refuse_lost(desk.layout, desk.generation, newest)
    failed = _failed_in_a_row(desk.layout) if found.in_flight is not None else []
    last = (failed[0].error if failed else None) or {}
    if len(failed) > 1:
        desk.wrong(
            "batch-keeps-failing",
            "checkpoint",
            f"batch {found.in_flight} failed {len(failed)} times in a row, the last time with {last.get('code')}: "
            f"{shortened(str(last.get('found')))}",
            _report_of(desk, failed[0]),
        )
    elif failed:
        text = f"batch {found.in_flight} failed with {last.get('code')}; the next run repeats it, which is safe"
        desk.note("batch-in-flight", "checkpoint", text, _report_of(desk, failed[0]))
    elif found.in_flight is not None:
        desk.note(
            "batch-in-flight",
            "checkpoint",
            f"batch {found.in_flight} was begun and is not known to be done; the next run repeats it, which is safe",
            f"draindown run {desk.layout.pipeline}",
        )
    done = -1 if found.last_commit is None else found.last_commit
    if newest is not None and newest > done + 1:
        desk.note(
            "checkpoint-older",
            "checkpoint",
            f"it is done up to batch {done}, the table up to {newest}: an older copy; what it replays changes nothing",
            f"draindown run {desk.layout.pipeline}",
        )


def _report_of(desk: Desk, failed: StepReport) -> str:
    """Return the command that shows the error of a start, and what helps."""
    return desk.command("report", f" --run {shlex.quote(failed.run_id)}")


def _failed_in_a_row(layout: FlowHome) -> list[StepReport]:
    """Return the reports of the newest drains that failed, newest first, as far back as one that
    did a batch or ended.

    A start that found the lease taken, or was stopped, says nothing of the batch.
    """
    failed = list[StepReport]()
    for run in store.runs(layout, _RUNS):
        for told in reversed(store.starts(layout, run)):
            if told.step != "drain" or (told.error or {}).get("code") in _NOT_OF_A_BATCH:
                continue
            if told.outcome != "failed":
                return failed
            failed.append(told)
            if told.drain is not None and told.drain.batches:
                return failed
    return failed


def look_at_intake(desk: Desk) -> None:
    """Examine the intake and compare it with the checkpoint. Raises TerminalError like
    `resume.refuse_other_intake`.
    """
    last = intake.newest(desk.layout, desk.generation)
    said = [f"{desk.source.unit}s for {count(last, 'batch', 'batches')}"]
    for finding in desk.source.named.open_findings(desk.layout) if desk.source.named else ():
        said.append(f"{finding.kind}: {finding.subject}")
        desk.note(
            f"{finding.kind}-{desk.source.unit}s",
            "intake",
            f"{finding.subject} {finding.detail}",
            finding.next,
        )
    desk.say("intake", ", ".join(said))
    if not desk.at_work:
        resume.refuse_other_intake(desk.layout, desk.checkpoint, desk.generation)


def look_at_runs(desk: Desk) -> None:
    """Say what waits as the newest step that looked saw it, and how the newest runs ended."""
    waiting, newest, success = desk.health.waiting, desk.health.newest_run, desk.health.last_success
    desk.say("waiting", "; before that ".join(filter(None, (waiting.unlooked, str(waiting)))))
    if newest is None:
        return
    last = f"{newest.mark}, {in_words(newest.at)}"
    if success is not None and success != newest.at:
        last += f"; the last success was at {in_words(success)}"
    elif success is None:
        last += "; none of the newest was a success"
    desk.say("last run", last)


def look_at_replays(desk: Desk) -> None:
    """Examine unfinished replays and releases."""
    begun = replay.unfinished(desk.layout)
    desk.say("replays", f"{count(len(begun))} unfinished")
    for one in begun:
        text = f"replay {one.id} did {one.done} of {count(len(one.parts), 'batch', 'batches')}"
        desk.note(
            "replay-unfinished", "replays", text, desk.command("replay", f" {one.options} --yes")
        )
    if not desk.at_work and (number := release_intent.unsettled(desk.layout)):
        text = f"{count(number, 'row')} were applied and are not marked as released yet; the next run does it"
        desk.note("replay-unsettled", "replays", text, f"draindown run {desk.layout.pipeline}")


def look_at_rebuild(desk: Desk) -> None:
    """Examine an unfinished rebuild."""
    begun = rebuild.unfinished(desk.layout)
    desk.say(
        "rebuild",
        f"of generation {begun.generation}, begun {begun.at} by {begun.by}" if begun else "none",
    )
    if begun is None or desk.at_work:
        return
    left = half_rebuilt.state_of(desk.layout, begun, desk.generation)
    tell = desk.wrong if left.is_wrong else desk.note
    tell(left.code, "rebuild", left.found, left.next)
