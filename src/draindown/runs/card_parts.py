"""The lines of a run card about the parts of its reports: what a drain, a check and a compaction
did.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from draindown.base.formatting import age, columns, count, percent, printable, size
from draindown.ledger.rows import SINK_FATES
from draindown.runs import history_card
from draindown.runs.card_lines import ROOM, labelled, pieces
from draindown.runs.derived_card import account_lines, is_derived, sum_line
from draindown.runs.report import Backlog, CheckPart, CompactPart, DrainPart, Expectation

_MOST_EXPECTATIONS = 3
FATES = ("applied", "superseded", "duplicate", "quarantined", "late")
APPLIED = {name: name for name in ("inserted", "updated", "deleted", "remembered")}


def drain_lines(drain: DrainPart) -> list[str]:
    """Return the lines of a drain, or of what was done instead of one."""
    backlog = _backlog_lines(drain)
    if not drain.batches:
        return backlog or (
            labelled("batches", [f"none; {printable(drain.bound)}"]) if drain.bound else []
        )
    sums, derived = drain.totals, is_derived(drain)
    of_history = history_card.is_of(drain)
    runs = history_card.lines(sums) if of_history else []
    wrong = history_card.wrong(sums) if of_history else ""
    batches = f"{count(len(drain.batches), 'batch', 'batches')} of generation {drain.generation}"
    if drain.bound:
        batches += f"; {printable(drain.bound)}"
    if drain.kept_out:
        batches += f"; {count(drain.kept_out, drain.unit)} parked"
    return [
        *labelled("rows", account_lines(drain) if derived else _fate_lines(drain)),
        *labelled("", [*runs, sum_line(sums) if derived else wrong or _sum_line(sums)]),
        *labelled("batches", [batches]),
        *labelled("sinks", [_sink_line(name, counts) for name, counts in drain.sinks.items()]),
        *backlog,
    ]


def _sink_line(name: str, counts: Mapping[str, int]) -> str:
    return f"{name}: " + "  ".join(f"{fate} {count(counts.get(fate, 0))}" for fate in SINK_FATES)


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
    of_history = history_card.is_of(drain)
    applied = history_card.APPLIED if of_history else APPLIED
    notes = {
        "applied": "  ".join(
            f"{named} {count(sums.get(name, 0))}" for name, named in applied.items()
        ),
        "quarantined": _refused(drain) + _reasons(drain),
    }
    for name in FATES:
        yield name, count(sums.get(name, 0)), notes.get(name, "")
    yield "records", count(sums.get("records", 0)), ""


def _sum_line(sums: Mapping[str, int]) -> str:
    fates, records = sum(sums.get(name, 0) for name in FATES), sums.get("records", 0)
    if not sums.get("events") and sum(sums.get(name, 0) for name in APPLIED) != sums.get(
        "applied", 0
    ):
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
    """Format a backlog: `104 files, 31.2 MB, oldest 3 h`, or `nothing`."""
    if not backlog.units:
        return "nothing"
    oldest = f", oldest {age(backlog.oldest_seconds)}" if backlog.oldest_seconds is not None else ""
    return f"{count(backlog.units, backlog.unit)}, {size(backlog.bytes)}{oldest}"


def _backlog_lines(drain: DrainPart) -> list[str]:
    if drain.before is None or drain.after is None:
        return []
    return labelled("backlog", [f"{backlog_words(drain.before)} -> {backlog_words(drain.after)}"])


def check_lines(check: CheckPart, *, idle: bool = False) -> list[str]:
    """Return the lines of a check: the verdict, expectations that failed, the published version,
    open windows.

    `idle`: whether the check found nothing unpublished.
    """
    is_open = (
        labelled("open", pieces(printable(check.open_windows), 3)) if check.open_windows else []
    )
    return [*_gate_lines(check, idle=idle), *is_open]


def _gate_lines(check: CheckPart, *, idle: bool) -> list[str]:
    # the lines of the drain show a refused share that holds
    expectations = [e for e in check.expectations if e.scope != "input" or not e.success]
    if not expectations:
        none = "nothing new to judge" if idle else "no expectations"
        judged = f"passed: the refused share held; {none}" if check.expectations else none
        return labelled("gate", [f"{judged}; {_published(check)}"])
    failed = [e for e in expectations if not e.success]
    refused, noted = [e for e in failed if e.refuses], [e for e in failed if e.is_noted]
    judged = (
        f"{count(len(expectations), 'expectation')} on {count(check.changed_rows, 'changed row')}"
    )
    counts = f"{len(refused)} of {judged} failed" if refused else f"{judged} held"
    if noted and not refused:
        counts = f"{len(expectations) - len(noted)} of {counts}"
    waived = [e for e in failed if e.waived]
    counts += f", {len(waived)} waived" if waived else ""
    counts += f", {len(noted)} failed as warning or info" if noted else ""
    lines = [f"{'FAILED' if refused else 'passed'}: {counts}; {_published(check)}"]
    shown = (*refused, *waived)[:_MOST_EXPECTATIONS]
    lines += [line for e in shown for line in _expectation(e)]
    more = (
        [f"and {len(refused) + len(waived) - len(shown)} more"]
        if len(refused) + len(waived) > len(shown)
        else []
    )
    more += [f"page: {printable(check.page)}"] if failed and check.page else []
    lines += [";  ".join(more)] if more else []
    return labelled("gate", lines)


def _published(check: CheckPart) -> str:
    before = check.published_before
    if not check.publishes:
        return "nothing is published" if before is None else f"published stays {before}"
    return f"published {check.published_after}{', the first' if before is None else f' (was {before})'}"


def _expectation(judged: Expectation) -> list[str]:
    rows = (
        f"{count(judged.unexpected)} of {count(judged.judged)} {judged.scope} rows"
        if judged.judged
        else ""
    )
    sample = f"e.g. {', '.join(judged.examples)}" if judged.examples else ""
    head, detail = (
        ("waived" if judged.waived else "failed", printable(judged.name), rows),
        printable(judged.detail),
    )
    line = "  ".join(filter(None, (*head, sample, detail)))
    if len(line) <= ROOM:
        return [line]
    # the failing value is what people look for: whole, on lines of its own
    own = pieces(f"  {sample}", indent="       ") if sample else []
    return [*pieces("  ".join(filter(None, (*head, detail))), 3, indent="  "), *own]


def compact_lines(part: CompactPart) -> list[str]:
    """Return the line of a compaction."""
    if not part.files_before and not part.vacuumed_files:
        idle = part.evidence in ("", "nothing to do")
        return labelled(
            "compact", ["nothing to do" if idle else f"nothing done: {printable(part.evidence)}"]
        )
    where = f" in {count(len(part.partitions), 'partition')}" if part.partitions else ""
    files = f"{count(part.files_before, 'file')} -> {count(part.files_after)}{where}"
    done = f"{files}, {size(part.bytes_rewritten)} rewritten"
    vacuum = f"; {count(part.vacuumed_files, 'old file')} removed" if part.vacuumed_files else ""
    return labelled("compact", [f"{done}{vacuum}  ({printable(part.evidence)})"])
