"""The run card: what a run did, for people at 3 a.m. Plain text, at most 30 lines a flow and 100 columns.

The first line is the verdict in words; then what became of every row, the backlog, the gate, maintenance, findings
and, where something failed, what was tried, found and changed, and what to type next.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from draindown.base.findings import Finding
from draindown.base.formatting import age, columns, count, printable, size
from draindown.runs.report import Backlog, CheckPart, CompactPart, DrainPart, Expectation, PlanPart, StepReport
from draindown.runs.request import STEPS

WIDTH = 100
_LABEL = 9
_MOST_FINDINGS = 2
_MOST_EXPECTATIONS = 3
_MOST_COMMANDS = 2
_FATES = ("applied", "superseded", "duplicate", "quarantined", "late")
_APPLIED = ("inserted", "updated", "deleted", "remembered")


def card(reports: Sequence[StepReport]) -> str:
    """The card of one run: one block per flow, in the order the flows first appear."""
    flows: dict[tuple[str, str, str], list[StepReport]] = {}
    for report in reports:
        flows.setdefault((report.pipeline, report.flow, report.run_id), []).append(report)
    if not flows:
        return "no reports: nothing ran, or every step died before it could write one"
    return "\n\n".join("\n".join(_clipped(_block(_of_plan(steps)))) for steps in flows.values())


def _of_plan(steps: Sequence[StepReport]) -> Sequence[StepReport]:
    """Without what earlier attempts left, of a run that was cleared: what ended before a step began that it follows."""
    order = {step: at for at, step in enumerate(STEPS)}
    return [
        s
        for s in steps
        if not any(order[before.step] < order[s.step] and before.started_at > s.finished_at for before in steps)
    ]


def verdict(steps: Sequence[StepReport]) -> str:
    """The verdict over one flow's steps, in one line."""
    steps = _of_plan(steps)
    first = steps[0]
    drain = next((s.drain for s in steps if s.drain), None)
    failed = next((s for s in steps if s.outcome == "failed"), None)
    if failed:
        what = _failure(failed, drain)
    elif silent := _silent(steps):
        what = f"{silent} left no report: it is at work, never began, or its driver died"
    else:
        what = _success(steps, drain)
    name, took = printable(f"{first.pipeline}/{first.flow}"), age(sum(s.seconds for s in steps))
    return f"{_mark(steps)}  {name}  {what}  in {took}"


def _silent(steps: Sequence[StepReport]) -> str:
    """The first step that the plan found necessary, that somebody asked for, and that left no report."""
    plan = next((s.plan for s in steps if s.plan), None)
    told = {s.step for s in steps}
    # of a compaction that is due the drain decides anew
    awaited = [step for step in ("drain", "check") if plan and getattr(plan, step) and step not in plan.left_out]
    return next((step for step in awaited if step not in told), "")


def _is_unchecked(steps: Sequence[StepReport]) -> bool:
    """Whether nobody asked for a check that was necessary."""
    return any(s.plan and s.plan.check and "check" in s.plan.left_out for s in steps)


def _mark(steps: Sequence[StepReport]) -> str:
    outcomes = {s.outcome for s in steps}
    if "failed" in outcomes:
        return "FAILED"
    if _silent(steps):
        return "UNFINISHED"
    return "STOPPED EARLY" if "bounded" in outcomes else "IDLE" if outcomes <= {"idle"} else "OK"


def _success(steps: Sequence[StepReport], drain: DrainPart | None) -> str:
    left = "; not checked" if _is_unchecked(steps) else ""
    if drain and drain.batches:
        return _drained(drain) + left
    idle = "nothing to replay" if any(_replayed(s) for s in steps) else "no new input"
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
    read = f"{verb} {count(sums.get('files', 0), 'file')}, {count(sums.get('records', 0), 'row')}"
    return f"{read} -> {count(sums.get('applied', 0))} applied"


def _block(steps: Sequence[StepReport]) -> list[str]:
    lines = [verdict(steps), _labelled("run", [printable(steps[0].run_id)])[0]]
    replay = next((asked for s in steps if (asked := _replayed(s))), "")
    if replay:
        lines += _labelled("replay", [printable(replay)])
        lines += [line for s in steps if s.plan and not s.plan.drain for line in _labelled("", [_why_not(s.plan)])]
    for step in steps:
        if step.drain:
            lines += _drain_lines(step.drain)
        if step.check:
            lines += _check_lines(step.check)
        if step.compact:
            lines += _compact_lines(step.compact)
    lines += _finding_lines([f for step in steps for f in step.findings])
    for step in steps:
        if step.error:
            lines += _error_lines(step)
    return lines


def _why_not(plan: PlanPart) -> str:
    return printable(plan.reasons.get("drain", "nothing to replay"))


def _drain_lines(drain: DrainPart) -> list[str]:
    # a replay leaves the backlog alone and doesn't look at it
    backlog = [] if drain.replay else _labelled("backlog", [_backlog(drain.before, drain.after)])
    if not drain.batches:
        return backlog + (
            _labelled("batches", [f"none; {printable(drain.bound)}"]) if drain.replay and drain.bound else []
        )
    sums = drain.totals
    batches = f"{count(len(drain.batches), 'batch', 'batches')} of generation {drain.generation}"
    if drain.bound:
        batches += f"; {printable(drain.bound)}"
    if drain.parked_files:
        batches += f"; {count(drain.parked_files, 'file')} parked"
    return [
        *_labelled("rows", columns(list(_fates(drain)), right=[1])),
        *_labelled("", [_sum_line(sums)]),
        *_labelled("batches", [batches]),
        *backlog,
    ]


def _fates(drain: DrainPart) -> Iterable[tuple[str, str, str]]:
    sums = drain.totals
    notes = {
        "applied": "  ".join(f"{name} {count(sums.get(name, 0))}" for name in _APPLIED),
        "quarantined": _reasons(drain),
    }
    for name in _FATES:
        yield name, count(sums.get(name, 0)), notes.get(name, "")
    yield "records", count(sums.get("records", 0)), ""


def _sum_line(sums: Mapping[str, int]) -> str:
    fates, records = sum(sums.get(name, 0) for name in _FATES), sums.get("records", 0)
    lines, blank = sums.get("lines", 0), sums.get("blank", 0)
    if sum(sums.get(name, 0) for name in _APPLIED) != sums.get("applied", 0):
        return "DOES NOT ADD UP: inserted, updated, deleted and remembered are not what was applied"
    if fates != records:
        return f"DOES NOT ADD UP: the fates make {count(fates)}, {count(records)} were read"
    if lines != records + blank:
        return f"DOES NOT ADD UP: {count(lines)} lines are not {count(records)} records and {count(blank)} blank"
    return "adds up ✓" + (f"  ({count(blank, 'blank line')} apart)" if blank else "")


def _reasons(drain: DrainPart) -> str:
    sums: dict[str, int] = {}
    for batch in drain.batches:
        found = batch.get("reasons") or {}
        for reason, number in (json.loads(found) if isinstance(found, str) else found).items():
            sums[reason] = sums.get(reason, 0) + number
    ranked = sorted(sums.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{printable(reason, 30)} {count(number)}" for reason, number in ranked[:4]]
    rest = sum(number for _, number in ranked[4:])
    return ", ".join(shown + ([f"others {count(rest)}"] if rest else []))


def backlog_words(backlog: Backlog) -> str:
    """`104 files, 31.2 MB, oldest 3 h`, or `nothing`."""
    if not backlog.files:
        return "nothing"
    oldest = f", oldest {age(backlog.oldest_seconds)}" if backlog.oldest_seconds is not None else ""
    return f"{count(backlog.files, 'file')}, {size(backlog.bytes)}{oldest}"


def _backlog(before: Backlog, after: Backlog) -> str:
    return f"{backlog_words(before)} -> {backlog_words(after)}"


def _check_lines(check: CheckPart) -> list[str]:
    if not check.expectations:
        return _labelled("gate", [f"nothing to judge; {_published(check)}"])
    failed = [e for e in check.expectations if not e.success]
    refused = [e for e in failed if not e.waived]
    judged = f"{count(len(check.expectations), 'expectation')} on {count(check.changed_rows, 'changed row')}"
    counts = f"{len(refused)} of {judged} failed" if refused else f"{judged} held"
    waived = f", {len(failed) - len(refused)} waived" if len(failed) > len(refused) else ""
    lines = [f"{'FAILED' if refused else 'passed'}: {counts}{waived}; {_published(check)}"]
    lines += [_expectation(e) for e in (*refused, *(e for e in failed if e.waived))[:_MOST_EXPECTATIONS]]
    more = [f"and {len(failed) - _MOST_EXPECTATIONS} more"] if len(failed) > _MOST_EXPECTATIONS else []
    more += [f"page: {printable(check.page)}"] if failed and check.page else []
    lines += [";  ".join(more)] if more else []
    return _labelled("gate", lines)


def _published(check: CheckPart) -> str:
    before = "none" if check.published_before is None else str(check.published_before)
    if check.published_after is None or check.published_after == check.published_before:
        return f"published stays {before}"
    return f"published {check.published_after} (was {before})"


def _expectation(judged: Expectation) -> str:
    rows = f"{count(judged.unexpected)} of {count(judged.judged)} {judged.scope} rows" if judged.judged else ""
    sample = f"e.g. {', '.join(printable(str(s), 30) for s in judged.sample[:3])}" if judged.sample else ""
    parts = ("waived" if judged.waived else "failed", printable(judged.name), rows, sample, printable(judged.detail))
    return "  ".join(part for part in parts if part)


def _compact_lines(part: CompactPart) -> list[str]:
    if not part.files_before and not part.vacuumed_files:
        return _labelled("compact", [f"nothing done: {printable(part.evidence)}"])
    where = f" in {count(len(part.partitions), 'partition')}" if part.partitions else ""
    files = f"{count(part.files_before, 'file')} -> {count(part.files_after)}{where}"
    done = f"{files}, {size(part.bytes_rewritten)} rewritten"
    vacuum = f"; {count(part.vacuumed_files, 'old file')} removed" if part.vacuumed_files else ""
    return _labelled("compact", [f"{done}{vacuum}  ({printable(part.evidence)})"])


def _finding_lines(findings: Sequence[Finding]) -> list[str]:
    unique = list({(f.kind, f.subject): f for f in findings}.values())
    lines = []
    room = max(1, _MOST_FINDINGS // len(unique)) if unique else 1  # lines
    for finding in unique[:_MOST_FINDINGS]:
        subject, detail = printable(finding.subject), printable(finding.detail)
        lines += _labelled("finding", _pieces(f"{finding.kind}  {_tail(subject, 45)}  {detail}", room))
        if finding.next:
            lines += _labelled("", [f"next: {printable(finding.next)}"])
    if len(unique) > _MOST_FINDINGS:
        lines += _labelled("", [f"and {len(unique) - _MOST_FINDINGS} more: draindown report, or the JSON of this run"])
    return lines


def _error_lines(step: StepReport) -> list[str]:
    error = step.error or {}
    tried, found, changed = (printable(str(error.get(name) or "unknown")) for name in ("tried", "found", "changed"))
    lines = _labelled("error", [f"{printable(str(error.get('code', 'unforeseen')))} in {step.step}"])
    for name, text, most in (("found", found, 3), ("tried", tried, 1), ("changed", changed, 1)):
        lines += _wrapped(f"{name}: ", text, most)
    for command in list(error.get("next") or [])[:_MOST_COMMANDS]:
        # a command that is cut can't be typed: it may pass the width
        lines.append(" " * (_LABEL + 1) + _KEEP + f"next: {printable(str(command))}")
    return lines


_KEEP = "\0"


def _wrapped(start: str, text: str, most: int) -> list[str]:
    return _labelled("", _pieces(start + text, most))


def _pieces(whole: str, most: int) -> list[str]:
    room = WIDTH - _LABEL - 1
    pieces = [whole[i : i + room] for i in range(0, len(whole), room)][:most]
    if len(whole) > most * room:
        pieces[-1] = pieces[-1][:-3] + "..."
    return pieces


def _labelled(label: str, lines: Sequence[str]) -> list[str]:
    return [f"{label if not i else '':<{_LABEL}} {line}" for i, line in enumerate(lines)]


def _clipped(lines: Iterable[str]) -> list[str]:
    return [
        line.replace(_KEEP, "") if _KEEP in line or len(line) <= WIDTH else line[: WIDTH - 3] + "..."
        for line in (line.rstrip() for line in lines)
    ]


def _tail(text: str, most: int) -> str:
    # the end of a path says more than its start
    return text if len(text) <= most else "..." + text[3 - most :]
