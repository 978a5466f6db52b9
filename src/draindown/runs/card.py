"""The run card: what a run did, for people at 3 a.m. Plain text, mostly within 30 lines a flow and 100 columns.

The first line is the verdict in words; then what became of every row, the backlog, the gate, maintenance, findings
and, where something failed, what was tried, found and changed, and what to type next. Lines are wrapped at blanks only:
a path, a command or a number is never cut, though it pass the width.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from draindown.base.errors import next_steps
from draindown.base.findings import Finding
from draindown.base.formatting import age, columns, count, percent, printable, size
from draindown.runs.card_lines import LABEL, ROOM, WIDTH, labelled, pieces
from draindown.runs.report import Backlog, CheckPart, CompactPart, DrainPart, Expectation, PlanPart, StepReport
from draindown.runs.request import STEPS, Step
from draindown.runs.unfinished import Unfinished

_LONGEST_TEXT = 4000
_MOST_FINDINGS = 2
_MOST_EXPECTATIONS = 3
_MOST_COMMANDS = 4
_MOST_LINES = {"found": 5, "tried": 2, "changed": 2}
_FATES = ("applied", "superseded", "duplicate", "quarantined", "late")
_APPLIED = ("inserted", "updated", "deleted", "remembered")


def card(reports: Sequence[StepReport], unfinished: Iterable[Unfinished] = ()) -> str:
    """The card of one run: one block per flow, in the order the flows first appear.

    `unfinished`: what is known of the steps that left no report.
    """
    open_steps = {(one.pipeline, one.flow, one.run_id): one for one in unfinished}
    blocks = [_block(_of_plan(steps), open_steps.get(key)) for key, steps in by_flow(reports).items()]
    if not blocks:
        return "no reports: nothing ran, or every step died before it could write one"
    return "\n\n".join("\n".join(line.rstrip() for line in block) for block in blocks)


def by_flow(reports: Iterable[StepReport]) -> dict[tuple[str, str, str], list[StepReport]]:
    """Reports by pipeline, flow and run, in the order in which these first appear."""
    flows: dict[tuple[str, str, str], list[StepReport]] = {}
    for report in reports:
        flows.setdefault((report.pipeline, report.flow, report.run_id), []).append(report)
    return flows


def _of_plan(steps: Sequence[StepReport]) -> Sequence[StepReport]:
    """Without what earlier attempts left, of a run that was cleared: what ended before a step began that it follows."""
    order = {step: at for at, step in enumerate(STEPS)}
    return [
        s
        for s in steps
        if not any(order[before.step] < order[s.step] and before.started_at > s.finished_at for before in steps)
    ]


def verdict(steps: Sequence[StepReport], unfinished: Unfinished | None = None) -> str:
    """The verdict over one flow's steps, in one line. `unfinished`: what is known of the one that left no report."""
    steps = _of_plan(steps)
    first = steps[0]
    drain = next((s.drain for s in steps if s.drain), None)
    failed = next((s for s in steps if s.outcome == "failed"), None)
    head = f"{_mark(steps)}  {printable(f'{first.pipeline}/{first.flow}')}"
    if failed is None and (step := silent(steps)):
        return f"{head}  {unfinished or f'{step} left no report'}"
    what = _failure(failed, drain) if failed else _success(steps, drain)
    return f"{head}  {what}  in {age(sum(s.seconds for s in steps))}"


def silent(steps: Sequence[StepReport]) -> Step | None:
    """The first step that the plan found necessary, that somebody asked for, and that left no report."""
    steps = _of_plan(steps)
    plan = next((s.plan for s in steps if s.plan), None)
    told = {s.step for s in steps}
    # of a compaction that is due the drain decides anew
    wanted: tuple[Step, ...] = ("drain", "check")
    awaited = [step for step in wanted if plan and getattr(plan, step) and step not in plan.left_out]
    return next((step for step in awaited if step not in told), None)


def _is_unchecked(steps: Sequence[StepReport]) -> bool:
    """Whether nobody asked for a check that was necessary."""
    return any(s.plan and s.plan.check and "check" in s.plan.left_out for s in steps)


def _mark(steps: Sequence[StepReport]) -> str:
    outcomes = {s.outcome for s in steps}
    if "failed" in outcomes:
        return "FAILED"
    if silent(steps):
        return "UNFINISHED"
    if any(s.drain and s.drain.refused == "failed" for s in steps) and not any(s.check for s in steps):
        return "REFUSED"
    return "STOPPED EARLY" if "bounded" in outcomes else "IDLE" if outcomes <= {"idle"} else "OK"


def _success(steps: Sequence[StepReport], drain: DrainPart | None) -> str:
    left = "; not checked" if _is_unchecked(steps) else ""
    if drain and drain.batches:
        return _drained(drain) + left
    idle = "nothing to replay" if any(_replayed(s) for s in steps) else "no new input"
    if earlier := _earlier(steps):
        more = idle.replace("nothing", "nothing more").replace("no new", "no more")
        idle = f"{more}; before that {_moved(earlier, _unit(steps))}"
    compacted = any(s.compact and s.compact.files_before for s in steps)
    checked = any(s.check and s.check.expectations for s in steps)
    done = [word for word, so in (("checked", checked), ("compacted", compacted)) if so]
    if not any(s.step in ("plan", "drain") for s in steps):
        return " and ".join(done) or "nothing to do"
    return idle + (f"; {' and '.join(done)}" if done else "" if left else "; nothing to do") + left


def _replayed(step: StepReport) -> str:
    """What the step read again, or would have; empty for a drain."""
    return (step.drain.replay if step.drain else "") or (step.plan.replay if step.plan else "")


def _failure(failed: StepReport, drain: DrainPart | None) -> str:
    code = (failed.error or {}).get("code") or "no error was recorded"
    what = "the gate refused the rows; nothing was published" if code == "gate-failed" else f"{failed.step}: {code}"
    return printable(f"{what}, after it {_drained(drain)}" if drain and drain.batches else what)


def _drained(drain: DrainPart) -> str:
    sums = drain.totals
    if {batch.get("kind") for batch in drain.batches} == {"gate"}:
        return f"withdrew {count(sums.get('records', 0), 'row')} from the table, into the quarantine"
    verb = "replayed" if drain.replay else "drained"
    read = f"{verb} {count(sums.get('units', 0), drain.unit)}, {count(sums.get('records', 0), 'row')}"
    refused = f", {percent(drain.refused_share)} refused" if drain.refused and drain.refused_share else ""
    return f"{read} -> {count(sums.get('applied', 0))} applied{refused}"


def _block(steps: Sequence[StepReport], unfinished: Unfinished | None) -> list[str]:
    lines = pieces(verdict(steps, unfinished), indent="  ", width=WIDTH)
    lines += labelled("run", [printable(steps[0].run_id)])
    replay = next((asked for s in steps if (asked := _replayed(s))), "")
    if replay:
        lines += labelled("replay", [printable(replay)])
        lines += [line for s in steps if s.plan and not s.plan.drain for line in labelled("", [_why_not(s.plan)])]
    lines += _run_lines(steps)
    for step in steps:
        if step.drain:
            lines += _drain_lines(step.drain, looked=step.outcome != "failed")
        if step.check:
            lines += _check_lines(step.check)
        if step.compact:
            lines += _compact_lines(step.compact)
    lines += _finding_lines([f for step in steps for f in step.findings])
    for step in steps:
        if step.error:
            lines += _error_lines(step)
    if unfinished and not any(step.error for step in steps):
        lines += _next_lines({"next": unfinished.next})
    return lines


def _run_lines(steps: Sequence[StepReport]) -> list[str]:
    """What the ledger has of the run beyond what the start at hand did, and what that one found done."""
    lines, sums = [], _earlier(steps)
    if sums:
        batches = count(sums.get("batches", 0), "batch", "batches")
        lines += labelled("ledger", [f"this run has {batches} by other starts: {_moved(sums, _unit(steps))}"])
    for row in [row for s in steps if s.drain for row in s.drain.settled]:
        who = f"batch {row['batch']} was committed by run {printable(str(row['run_id']))}"
        made = f"{who}, and not told: {_moved(row, _unit(steps))}"
        lines += [] if row["run_id"] == steps[0].run_id else labelled("earlier", [made])
    return lines


def _earlier(steps: Sequence[StepReport]) -> Mapping[str, int]:
    """Sums over the batches of the run that other starts made than those told here; empty where there are none."""
    run = next((s.run for s in reversed(steps) if s.run), None)
    own = next((s.drain.totals for s in steps if s.drain), {})
    drains = any(s.step in ("plan", "drain") for s in steps)  # the card of a check alone tells of no batches
    if run is None or not drains or run.totals.get("batches", 0) <= own.get("batches", 0):
        return {}
    return {name: number - own.get(name, 0) for name, number in run.totals.items()}


def _moved(sums: Mapping[str, Any], unit: str) -> str:
    return f"{count(sums['units'], unit)}, {count(sums['records'], 'row')} -> {count(sums['applied'])} applied"


def _unit(steps: Sequence[StepReport]) -> str:
    return next((s.drain.unit for s in steps if s.drain), DrainPart.model_fields["unit"].default)


def _why_not(plan: PlanPart) -> str:
    return printable(plan.reasons.get("drain", "nothing to replay"))


def _drain_lines(drain: DrainPart, *, looked: bool) -> list[str]:
    # a replay does not read the backlog, and a drain that failed does not report it
    backlog = [] if drain.replay or not looked else labelled("backlog", [_backlog(drain.before, drain.after)])
    if not drain.batches:
        return backlog + (
            labelled("batches", [f"none; {printable(drain.bound)}"]) if drain.replay and drain.bound else []
        )
    sums = drain.totals
    batches = f"{count(len(drain.batches), 'batch', 'batches')} of generation {drain.generation}"
    if drain.bound:
        batches += f"; {printable(drain.bound)}"
    if drain.kept_out:
        batches += f"; {count(drain.kept_out, drain.before.unit)} parked"
    return [
        *labelled("rows", _fate_lines(drain)),
        *labelled("", [_sum_line(sums)]),
        *labelled("batches", [batches]),
        *backlog,
    ]


def _fate_lines(drain: DrainPart) -> list[str]:
    fates = list(_fates(drain))
    numbers = columns([(name, number) for name, number, _ in fates], right=[1])
    indent = len(numbers[0]) + 2
    lines = []
    for cells, (_, _, note) in zip(numbers, fates, strict=True):
        notes = pieces(note, width=ROOM - indent) or [""]
        lines += [f"{cells}  {notes[0]}", *(" " * indent + more for more in notes[1:])]
    return lines


def _fates(drain: DrainPart) -> Iterable[tuple[str, str, str]]:
    sums = drain.totals
    notes = {
        "applied": "  ".join(f"{name} {count(sums.get(name, 0))}" for name in _APPLIED),
        "quarantined": _refused(drain) + _reasons(drain),
    }
    for name in _FATES:
        yield name, count(sums.get(name, 0)), notes.get(name, "")
    yield "records", count(sums.get("records", 0)), ""


def _sum_line(sums: Mapping[str, int]) -> str:
    fates, records = sum(sums.get(name, 0) for name in _FATES), sums.get("records", 0)
    if sum(sums.get(name, 0) for name in _APPLIED) != sums.get("applied", 0):
        return "DOES NOT ADD UP: inserted, updated, deleted and remembered are not what was applied"
    if fates != records:
        return f"DOES NOT ADD UP: the fates make {count(fates)}, {count(records)} were read"
    return "adds up ✓"


def _refused(drain: DrainPart) -> str:
    return f"{percent(drain.refused_share)} of the records: " if drain.refused_share else ""


def _reasons(drain: DrainPart) -> str:
    sums: dict[str, int] = {}
    for batch in drain.batches:
        found = batch.get("reasons") or {}
        for reason, number in (json.loads(found) if isinstance(found, str) else found).items():
            sums[reason] = sums.get(reason, 0) + number
    ranked = sorted(sums.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{printable(reason)} {count(number)}" for reason, number in ranked[:4]]
    rest = sum(number for _, number in ranked[4:])
    return ", ".join(shown + ([f"others {count(rest)}"] if rest else []))


def backlog_words(backlog: Backlog) -> str:
    """`104 files, 31.2 MB, oldest 3 h`, or `nothing`."""
    if not backlog.units:
        return "nothing"
    oldest = f", oldest {age(backlog.oldest_seconds)}" if backlog.oldest_seconds is not None else ""
    return f"{count(backlog.units, backlog.unit)}, {size(backlog.bytes)}{oldest}"


def _backlog(before: Backlog, after: Backlog) -> str:
    return f"{backlog_words(before)} -> {backlog_words(after)}"


def _check_lines(check: CheckPart) -> list[str]:
    # a share of the input that held is told by the rows' own lines
    expectations = [e for e in check.expectations if e.scope != "input" or not e.success]
    if not expectations:
        return labelled("gate", [f"no expectations, so nothing was judged; {_published(check)}"])
    failed = [e for e in expectations if not e.success]
    refused = [e for e in failed if not e.waived]
    judged = f"{count(len(expectations), 'expectation')} on {count(check.changed_rows, 'changed row')}"
    counts = f"{len(refused)} of {judged} failed" if refused else f"{judged} held"
    waived = f", {len(failed) - len(refused)} waived" if len(failed) > len(refused) else ""
    lines = [f"{'FAILED' if refused else 'passed'}: {counts}{waived}; {_published(check)}"]
    shown = (*refused, *(e for e in failed if e.waived))[:_MOST_EXPECTATIONS]
    lines += [line for e in shown for line in pieces(_expectation(e), 3, indent="  ")]
    more = [f"and {len(failed) - _MOST_EXPECTATIONS} more"] if len(failed) > _MOST_EXPECTATIONS else []
    more += [f"page: {printable(check.page)}"] if failed and check.page else []
    lines += [";  ".join(more)] if more else []
    return labelled("gate", lines)


def _published(check: CheckPart) -> str:
    before = check.published_before
    if check.published_after is None or check.published_after == before:
        return "nothing is published" if before is None else f"published stays {before}"
    return f"published {check.published_after}{', the first' if before is None else f' (was {before})'}"


def _expectation(judged: Expectation) -> str:
    rows = f"{count(judged.unexpected)} of {count(judged.judged)} {judged.scope} rows" if judged.judged else ""
    sample = f"e.g. {', '.join(printable(str(s), 30) for s in judged.sample[:3])}" if judged.sample else ""
    parts = ("waived" if judged.waived else "failed", printable(judged.name), rows, sample, printable(judged.detail))
    return "  ".join(part for part in parts if part)


def _compact_lines(part: CompactPart) -> list[str]:
    if not part.files_before and not part.vacuumed_files:
        idle = part.evidence in ("", "nothing to do")
        return labelled("compact", ["nothing to do" if idle else f"nothing done: {printable(part.evidence)}"])
    where = f" in {count(len(part.partitions), 'partition')}" if part.partitions else ""
    files = f"{count(part.files_before, 'file')} -> {count(part.files_after)}{where}"
    done = f"{files}, {size(part.bytes_rewritten)} rewritten"
    vacuum = f"; {count(part.vacuumed_files, 'old file')} removed" if part.vacuumed_files else ""
    return labelled("compact", [f"{done}{vacuum}  ({printable(part.evidence)})"])


def _finding_lines(findings: Sequence[Finding]) -> list[str]:
    unique = list({(f.kind, f.subject): f for f in findings}.values())
    lines, most = [], 4 if len(unique) == 1 else 3
    for finding in unique[:_MOST_FINDINGS]:
        told = f"{finding.kind}  {printable(finding.subject)}  {printable(finding.detail)}"
        lines += labelled("finding", pieces(told, most, indent="  "))
        lines += _next_lines({"next": [finding.next] if finding.next else []})
    if len(unique) > _MOST_FINDINGS:
        lines += labelled("", [f"and {len(unique) - _MOST_FINDINGS} more: draindown report, or the JSON of this run"])
    return lines


def _error_lines(step: StepReport) -> list[str]:
    error = step.error or {}
    lines = labelled("error", [f"{printable(str(error.get('code', 'unforeseen')))} in {step.step}"])
    for name, most in _MOST_LINES.items():
        if name == "found" and step.check and error.get("code") == "gate-failed":
            continue  # the gate's lines have it
        text = f"{name}: {printable(str(error.get(name) or 'unknown'), _LONGEST_TEXT)}"
        lines += labelled("", pieces(text, most, indent="  "))
    return lines + _next_lines(error)


def _next_lines(error: Mapping[str, object]) -> list[str]:
    """What to type, each on a line of its own however long it is: it is there to be copied."""
    steps = list(next_steps(error))[:_MOST_COMMANDS]
    return [f"{'':<{LABEL}} {label}: {printable(command)}" for label, command in steps]
