"""The run card: a report of a run for people, as plain text. Usually at most 30 lines per flow and
110 columns.

The first line is the verdict. Then follow the fates of all records, what waits, the check,
maintenance and findings. If a step failed, its error and the next commands come last. Lines are wrapped at
blanks only, so that a path, a command or a number is never cut. Such a line may exceed the width.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from draindown.base.errors import next_steps
from draindown.base.findings import Finding
from draindown.base.formatting import age, count, percent, printable
from draindown.runs.card_lines import LABEL, WIDTH, labelled, pieces
from draindown.runs.card_parts import check_lines, compact_lines, drain_lines
from draindown.runs.derived_card import is_derived, moved
from draindown.runs.report import DrainPart, PlanPart, StepReport
from draindown.runs.request import STEPS, Step
from draindown.runs.unfinished import Unfinished

_LONGEST_TEXT = 4000
_MOST_FINDINGS = 2
ALL_FINDINGS = 100
"""Findings per flow that `report` shows."""
_MOST_COMMANDS = 8
_MOST_LINES = {"found": 5, "tried": 2, "changed": 2}


def card(
    reports: Sequence[StepReport],
    unfinished: Iterable[Unfinished] = (),
    *,
    whole: bool = True,
    findings: int = _MOST_FINDINGS,
) -> str:
    """Return the card of one run: one block per flow, in the order in which the flows first appear.

    `unfinished`: the steps that left no report. `whole`: whether `reports` are all of the run so
    far; if not, a step without a report may have run. `findings`: how many to show per flow.
    """
    open_steps = {(one.pipeline, one.flow, one.run_id): one for one in unfinished}
    flows = by_flow(reports).items()
    blocks = [_block(_of_plan(steps), open_steps.get(key), whole, findings) for key, steps in flows]
    if not blocks:
        return "no reports: nothing ran, or every step died before it could write one"
    return "\n\n".join("\n".join(line.rstrip() for line in block) for block in blocks)


def by_flow(reports: Iterable[StepReport]) -> dict[tuple[str, str, str], list[StepReport]]:
    """Group reports by pipeline, flow and run, in the order in which these first appear."""
    flows: dict[tuple[str, str, str], list[StepReport]] = {}
    for report in reports:
        flows.setdefault((report.pipeline, report.flow, report.run_id), []).append(report)
    return flows


def _of_plan(steps: Sequence[StepReport]) -> Sequence[StepReport]:
    """Remove the reports of earlier attempts of a cleared run: those that began before a preceding
    step did.

    A verdict stands if the drain ran again and found nothing.
    """
    order = {step: at for at, step in enumerate(STEPS)}
    anew = [s for s in steps if s.step == "plan" or s.outcome != "idle"]
    return [
        s
        for s in steps
        if not any(order[b.step] < order[s.step] and b.order > s.order for b in anew)
    ]


def verdict(
    steps: Sequence[StepReport], unfinished: Unfinished | None = None, *, whole: bool = True
) -> str:
    """Return the verdict over one flow's steps in one line. `unfinished`, `whole`: as for
    `card`.
    """
    steps = _of_plan(steps)
    first = steps[0]
    drain = next((s.drain for s in steps if s.drain), None)
    failed = next((s for s in steps if s.outcome == "failed"), None)
    mark = _mark(steps, unfinished, whole=whole)
    head = f"{mark}  {printable(f'{first.pipeline}/{first.flow}')}"
    head += printable(f" ({first.environment})") if first.environment else ""
    if _is_open(steps, unfinished):
        return f"{head}  {unfinished or f'{silent(steps)} left no report'}"
    what = _failure(failed, drain) if failed else _success(steps, drain, whole=whole)
    if mark in ("STOPPED EARLY", "WRONG") and _is_unchecked(steps, whole=whole):
        what += "; not checked"
    return f"{head}  {what}  in {age(sum(s.seconds for s in steps))}"


def silent(steps: Sequence[StepReport]) -> Step | None:
    """Return the first step that the plan requires, that was not left out, and that has no report;
    None if none.
    """
    steps = _of_plan(steps)
    plan = next((s.plan for s in steps if s.plan), None)
    told = {s.step for s in steps}
    # the drain decides anew whether a compaction is due
    wanted: tuple[Step, ...] = ("drain", "check")
    awaited = [
        step for step in wanted if plan and getattr(plan, step) and step not in plan.left_out
    ]
    return next((step for step in awaited if step not in told), None)


def _is_unchecked(steps: Sequence[StepReport], *, whole: bool) -> bool:
    """Return whether the run left out a check that is necessary. `steps`: all of the run if
    `whole`.
    """
    if any(s.plan for s in steps):
        return any(s.plan and s.plan.check and "check" in s.plan.left_out for s in steps)
    # a replay, a rebuild or a withdrawal from the command line is a drain without a plan
    return (
        whole
        and any(s.drain and s.drain.batches for s in steps)
        and not any(s.step == "check" for s in steps)
    )


def _is_open(steps: Sequence[StepReport], unfinished: Unfinished | None) -> bool:
    """Return whether a step without a report decides the verdict: it began after all reports, or
    none has failed.
    """
    if unfinished is not None and unfinished.is_newer:
        return True
    return silent(steps) is not None and not any(s.outcome == "failed" for s in steps)


def _mark(steps: Sequence[StepReport], unfinished: Unfinished | None, *, whole: bool) -> str:
    outcomes = {s.outcome for s in steps}
    if _is_open(steps, unfinished):
        return unfinished.mark if unfinished else "UNFINISHED"
    if "failed" in outcomes:
        return "FAILED"
    if any(s.drain and s.drain.over_limit == "failed" for s in steps) and not any(
        s.check for s in steps
    ):
        return "OVER LIMIT"
    if _foreign(steps):
        return "WRONG"
    if "stopped" in outcomes:
        return "STOPPED EARLY"
    if _is_unchecked(steps, whole=whole):
        return "NOT CHECKED"
    return "IDLE" if outcomes <= {"idle"} else "OK"


def _foreign(steps: Sequence[StepReport]) -> list[Finding]:
    """Return the findings about commits of others in the table: the rows of a run that is done are
    not all its own.
    """
    return [finding for finding in _findings(steps) if finding.kind == "foreign"]


def _success(steps: Sequence[StepReport], drain: DrainPart | None, *, whole: bool) -> str:
    if drain and drain.batches:
        version = _publishes(steps)
        return _drained(drain) + ("" if version is None else f"; version {version} published")
    idle = "nothing to replay" if any(_replayed(s) for s in steps) else _idle(steps, drain)
    if earlier := _earlier(steps):
        more = idle.replace("nothing", "nothing more").replace("no new", "no more")
        idle = f"{more}; before that {_moved(earlier, _read_unit(steps))}"
    compacted = any(s.compact and s.compact.files_before for s in steps)
    checked = any(s.check and s.check.expectations for s in steps)
    version = _publishes(steps)
    told = (
        ("checked", checked),
        (f"published version {version}", version is not None),
        ("compacted", compacted),
    )
    done = " and ".join(word for word, is_so in told if is_so)
    if not any(s.step in ("plan", "drain") for s in steps):
        return done or "nothing to do"
    if done:
        return f"{idle}; {done}"
    is_more = _is_unchecked(steps, whole=whole) or (drain is not None and drain.rebuilt)
    return idle if is_more else idle + _nothing(steps)


def _publishes(steps: Sequence[StepReport]) -> int | None:
    """Return the version that a check of these steps published; None if none did."""
    return next((s.check.published_after for s in steps if s.check and s.check.publishes), None)


def _nothing(steps: Sequence[StepReport]) -> str:
    """Return what is left to do after a run that did nothing: nothing, unless a finding or a parked
    unit says more.
    """
    open_ = [finding for finding in _findings(steps) if finding.next]
    if open_:
        return f"; {count(len(open_), 'finding')}"
    return "" if _parked(steps) else "; nothing to do"


def _idle(steps: Sequence[StepReport], drain: DrainPart | None) -> str:
    if drain and drain.rebuilt:
        return f"finished the rebuild of generation {drain.generation}"
    if drain and drain.before is None:
        return "no batch"
    if drain and drain.kept_out:
        return f"no new input but {count(drain.kept_out, drain.unit)} that {_were(drain.kept_out)} parked"
    return "no new input" + (
        f"; {count(parked, _read_unit(steps))} parked" if (parked := _parked(steps)) else ""
    )


def _were(number: int) -> str:
    return "was" if number == 1 else "were"


def _read_unit(steps: Sequence[StepReport]) -> str:
    """Return the noun of what the ledger counts as units. The source may look at something
    smaller.
    """
    return next((part.unit for s in steps for part in (s.drain, s.plan) if part), "file")


def _parked(steps: Sequence[StepReport]) -> int:
    """Return how many units are parked until someone decides, by the newest step that looked."""
    ended = [s for s in steps if s.outcome != "failed"]
    looked = [part.parked for s in ended for part in (s.plan, s.drain) if part and not part.replay]
    return looked[-1] if looked else 0


def _replayed(step: StepReport) -> str:
    """Return the description of the replay that the step did or planned; empty for a drain."""
    return (step.drain.replay if step.drain else "") or (step.plan.replay if step.plan else "")


def _failure(failed: StepReport, drain: DrainPart | None) -> str:
    code = (failed.error or {}).get("code") or "no error was recorded"
    what = (
        "the check failed; nothing was published"
        if code == "gate-failed"
        else f"{failed.step}: {code}"
    )
    return printable(f"{what}, after it {_drained(drain)}" if drain and drain.batches else what)


def _drained(drain: DrainPart) -> str:
    sums = drain.totals
    if {batch.get("kind") for batch in drain.batches} == {"withdraw"}:
        return (
            f"withdrew {count(sums.get('records', 0), 'row')} from the table, into the quarantine"
        )
    rebuilt = f"rebuilt generation {drain.generation}: " if drain.rebuilt else ""
    if is_derived(drain):
        return f"{rebuilt}{moved(sums)}"
    verb = f"{rebuilt}read " if rebuilt else "replayed " if drain.replay else ""
    share = drain.quarantined_share if drain.over_limit else None
    quarantined = f", {percent(share)} quarantined" if share else ""
    return f"{verb}{_landed(sums, drain.unit)}{quarantined}"


def _landed(sums: Mapping[str, Any], unit: str) -> str:
    read = f"{count(sums.get('inputs', 0), unit)}, {count(sums.get('records', 0), 'record')}"
    return f"{read} -> {count(sums.get('applied', 0))} applied"


def _block(
    steps: Sequence[StepReport], unfinished: Unfinished | None, whole: bool, findings: int
) -> list[str]:
    lines = pieces(verdict(steps, unfinished, whole=whole), indent="  ", width=WIDTH)
    for finding in _foreign(steps):
        lines += labelled(
            "WRONG",
            pieces(f"{printable(finding.subject)}: {printable(finding.detail)}", indent="  "),
        )
        lines += _next_lines({"next": [finding.next]})
    lines += labelled("run", [printable(steps[0].run_id)])
    lines += [
        line
        for on in dict.fromkeys(s.cluster for s in steps if s.cluster)
        for line in labelled("on", [printable(on)])
    ]
    replay = next((asked for s in steps if (asked := _replayed(s))), "")
    if replay:
        lines += labelled("replay", [printable(replay)])
        lines += [
            line
            for s in steps
            if s.plan and not s.plan.drain
            for line in labelled("", [_why_not(s.plan)])
        ]
    lines += _run_lines(steps)
    for step in steps:
        if step.drain:
            lines += drain_lines(step.drain)
        if step.check:
            lines += check_lines(step.check, idle=step.outcome == "idle")
        if step.compact:
            lines += compact_lines(step.compact)
    if _is_unchecked(steps, whole=whole) and not any(step.error for step in steps):
        lines += _unchecked_lines(steps[0])
    lines += _parked_lines(steps)
    lines += _finding_lines(steps, findings)
    is_newer = unfinished is not None and unfinished.is_newer
    for step in steps:
        if step.error:
            lines += _earlier_lines(step) if is_newer else _error_lines(step)
    if unfinished and (is_newer or not any(step.error for step in steps)):
        lines += _next_lines({"next": unfinished.next})
    return lines


def _earlier_lines(step: StepReport) -> list[str]:
    """Return the line about an error that no longer decides: the step began again since."""
    code = printable(str((step.error or {}).get("code", "unforeseen")))
    return labelled(
        "earlier", [f"{step.step} failed with {code} at {step.finished_at:%Y-%m-%d %H:%M:%S} UTC"]
    )


def _unchecked_lines(first: StepReport) -> list[str]:
    check = f"draindown run {first.pipeline}/{first.flow}   # checks and publishes"
    lines = labelled(
        "check", ["not checked by this run: what it committed is published by the next check"]
    )
    return lines + _next_lines({"next": [check]})


def _parked_lines(steps: Sequence[StepReport]) -> list[str]:
    if not (parked := _parked(steps)):
        return []
    wait = "waits" if parked == 1 else "wait"
    waits = f"{count(parked, _read_unit(steps))} {wait} for a decision: deliver again, or discard"
    command = f"draindown input list {steps[0].pipeline}/{steps[0].flow}"
    return labelled("parked", [waits]) + _next_lines({"next": [command]})


def _run_lines(steps: Sequence[StepReport]) -> list[str]:
    """Return the lines about batches of other starts of the run, and about batches that this start
    found committed.
    """
    lines, sums = [], _earlier(steps)
    if sums:
        batches = count(sums.get("batches", 0), "batch", "batches")
        # without the report of a drain they may be those of the one that is at work
        by = " by other starts" if any(s.drain for s in steps) else ""
        lines += labelled(
            "ledger", [f"this run has {batches}{by}: {_moved(sums, _read_unit(steps))}"]
        )
    for row in [row for s in steps if s.drain for row in s.drain.settled]:
        who = f"batch {row['batch']} was committed by run {printable(str(row['run_id']))}"
        made = f"{who}, and not told: {_moved(row, _read_unit(steps))}"
        lines += [] if row["run_id"] == steps[0].run_id else labelled("earlier", [made])
    return lines


def _earlier(steps: Sequence[StepReport]) -> Mapping[str, int]:
    """Return the ledger's sums of the run less those of the start in `steps`; empty if other starts
    made no batch.
    """
    run = next((s.run for s in reversed(steps) if s.run), None)
    own = next((s.drain.totals for s in steps if s.drain), {})
    # the card of a check alone omits batches
    drains = any(s.step in ("plan", "drain") for s in steps)
    if run is None or not drains or run.totals.get("batches", 0) <= own.get("batches", 0):
        return {}
    return {name: number - own.get(name, 0) for name, number in run.totals.items()}


def _moved(sums: Mapping[str, Any], unit: str) -> str:
    return moved(sums) if sums.get("recomputed") else _landed(sums, unit)


def _why_not(plan: PlanPart) -> str:
    return printable(plan.reasons.get("drain", "nothing to replay"))


def _findings(steps: Sequence[StepReport]) -> list[Finding]:
    """Return the findings of all steps, each once."""
    return list({(f.kind, f.subject): f for step in steps for f in step.findings}.values())


def _finding_lines(steps: Sequence[StepReport], shown: int) -> list[str]:
    unique = [
        finding for finding in _findings(steps) if finding.kind != "foreign"
    ]  # the first lines have these
    lines, most = [], 4 if len(unique) == 1 else 3
    for finding in unique[:shown]:
        told = f"{finding.kind}  {printable(finding.subject)}  {printable(finding.detail)}"
        lines += labelled("finding", pieces(told, most, indent="  "))
        lines += _next_lines({"next": [finding.next] if finding.next else []})
    if (left := len(unique) - shown) > 0:
        report = f"draindown report {steps[0].pipeline}/{steps[0].flow} --run {shlex.quote(steps[0].run_id)}"
        lines += labelled("", [f"and {left} more"]) + _next_lines(
            {"next": [_all_of(report, shown)]}
        )
    return lines


def _all_of(report: str, shown: int) -> str:
    """Return the command that shows the findings which a card leaves out. `shown`: how many it
    has.
    """
    return report if shown < ALL_FINDINGS else f"{report} --json"


def _error_lines(step: StepReport) -> list[str]:
    error = step.error or {}
    lines = labelled("error", [f"{printable(str(error.get('code', 'unforeseen')))} in {step.step}"])
    for name, most in _MOST_LINES.items():
        if name == "found" and step.check and error.get("code") == "gate-failed":
            continue  # the check's lines have it
        text = f"{name}: {printable(str(error.get(name) or 'unknown'), _LONGEST_TEXT)}"
        lines += labelled("", pieces(text, most, indent="  "))
    return lines + _next_lines(error)


def _next_lines(error: Mapping[str, object]) -> list[str]:
    """Return the next commands, one per line whatever its length, so that they can be copied."""
    steps = list(next_steps(error))[:_MOST_COMMANDS]
    return [f"{'':<{LABEL}} {label}: {printable(command)}" for label, command in steps]
