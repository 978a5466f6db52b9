"""The lines of a run card about the parts of its reports: what a drain, a check and a compaction
did.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from draindown.base.formatting import age, count, percent, printable, size
from draindown.ledger.rows import SINK_FATES
from draindown.runs import history_card
from draindown.runs.card_lines import ROOM, labelled, law, pieces
from draindown.runs.derived_card import account_lines, is_derived
from draindown.runs.report import Backlog, CheckPart, CompactPart, DrainPart, Expectation

_MOST_EXPECTATIONS = 3
FATES = ("applied", "superseded", "duplicate", "quarantined", "late")
APPLIED = ("inserted", "updated", "deleted", "tombstoned")
_MOST_REASONS = 3
_NO_ROW = "that were not in the table"


def drain_lines(drain: DrainPart) -> list[str]:
    """Return the lines of a drain, or of what was done instead of one."""
    backlog = _backlog_lines(drain)
    if not drain.batches:
        return backlog or (
            labelled("batches", [f"none; {printable(drain.bound)}"]) if drain.bound else []
        )
    batches = f"{count(len(drain.batches), 'batch', 'batches')} of generation {drain.generation}"
    if drain.bound:
        batches += f"; {printable(drain.bound)}"
    if drain.kept_out:
        batches += f"; {count(drain.kept_out, drain.unit)} parked"
    return [
        *(account_lines(drain.totals) if is_derived(drain) else _landed_lines(drain)),
        *labelled("batches", [batches]),
        *labelled("sinks", [_sink_line(name, counts) for name, counts in drain.sinks.items()]),
        *backlog,
    ]


def _sink_line(name: str, counts: Mapping[str, int]) -> str:
    return f"{name}: " + "  ".join(f"{fate} {count(counts.get(fate, 0))}" for fate in SINK_FATES)


def _landed_lines(drain: DrainPart) -> list[str]:
    sums = drain.totals
    wrong = _wrong(drain)
    rest = labelled("", [f"DOES NOT ADD UP: {wrong}"]) if wrong else []
    return [
        *labelled("records", [law(sums, "records", "read", FATES, adds_up=not wrong)]),
        *rest,
        *labelled("applied", [_applied(drain)]),
        *labelled("quarantined", [_quarantined(drain)] if sums.get("quarantined") else []),
    ]


def _applied(drain: DrainPart) -> str:
    sums = drain.totals
    done = ", ".join(f"{count(sums.get(name, 0))} {name}" for name in APPLIED[:3])
    if history_card.is_of(drain):
        return f"{done}; {count(sums.get('hidden', 0), 'hidden event')}"
    beside = sums.get("tombstoned", 0)
    return f"{done}, {count(beside, 'delete')} of keys {_NO_ROW}" if beside else done


def _wrong(drain: DrainPart) -> str:
    """Return how the numbers of a drain fail to add up; empty if they add up."""
    sums = drain.totals
    fates, records = sum(sums.get(name, 0) for name in FATES), sums.get("records", 0)
    if history_card.is_of(drain) and (wrong := history_card.wrong(sums)):
        return wrong
    follows = all(batch.get("form", "land") == "land" for batch in drain.batches)
    if follows and sum(sums.get(name, 0) for name in APPLIED) != sums.get("applied", 0):
        return "inserted, updated, deleted and tombstoned are not what was applied"
    if fates != records:
        return f"the fates make {count(fates)}, {count(records)} were read"
    return ""


def _quarantined(drain: DrainPart) -> str:
    share = f"{percent(drain.quarantined_share)}: " if drain.quarantined_share else ""
    return share + _reasons(drain)


def _reasons(drain: DrainPart) -> str:
    sums: dict[str, int] = {}
    for batch in drain.batches:
        found = batch.get("reasons") or {}
        for reason, number in (json.loads(found) if isinstance(found, str) else found).items():
            sums[reason] = sums.get(reason, 0) + number
    ranked = sorted(sums.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{printable(reason)} {count(number)}" for reason, number in ranked[:_MOST_REASONS]]
    rest = [number for _, number in ranked[_MOST_REASONS:]]
    more = [f"{count(len(rest), 'more reason')} {count(sum(rest))}"] if rest else []
    return ", ".join(shown + more)


def backlog_words(backlog: Backlog) -> str:
    """Format a backlog: `104 files, 31.2 MB, oldest 3 h`, or `nothing`."""
    if not backlog.units:
        return "nothing"
    oldest = f", oldest {age(backlog.oldest_seconds)}" if backlog.oldest_seconds is not None else ""
    return f"{count(backlog.units, backlog.unit)}, {size(backlog.bytes)}{oldest}"


def _backlog_lines(drain: DrainPart) -> list[str]:
    if drain.before is None or drain.after is None:
        return []
    before, after = backlog_words(drain.before), backlog_words(drain.after)
    return labelled("waiting", [f"{after} (before: {before})"])


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
    # the lines of the drain show a quarantined share that holds
    expectations = [e for e in check.expectations if e.scope != "input" or not e.success]
    if not expectations:
        none = "nothing new to judge" if idle else "no expectations"
        judged = f"the quarantined share held; {none}" if check.expectations else none
        return labelled("check", [f"{judged}; {_published(check)}"])
    failed = [e for e in expectations if not e.success]
    refused, noted = [e for e in failed if e.refuses], [e for e in failed if e.is_noted]
    waived = [e for e in failed if e.waived]
    held, all_ = len(expectations) - len(failed), count(len(expectations), "expectation")
    rows = f"on {count(check.changed_rows, 'changed row')}"
    counts = f"{held} of {all_} held {rows}"
    if refused:
        counts = f"FAILED: {len(refused)} of {all_} failed {rows}"
    counts += f", {len(waived)} waived" if waived else ""
    counts += f", {len(noted)} failed as warning or info" if noted else ""
    lines = [f"{counts}; {_published(check)}"]
    shown = (*refused, *waived)[:_MOST_EXPECTATIONS]
    lines += [line for e in shown for line in _expectation(e)]
    more = (
        [f"and {len(refused) + len(waived) - len(shown)} more"]
        if len(refused) + len(waived) > len(shown)
        else []
    )
    more += [f"page: {printable(check.page)}"] if failed and check.page else []
    lines += [";  ".join(more)] if more else []
    return labelled("check", lines)


def _published(check: CheckPart) -> str:
    before = check.published_before
    if not check.publishes:
        return "nothing is published" if before is None else f"version {before} stays published"
    earlier = "none before" if before is None else f"version {before} before"
    return f"published version {check.published_after} ({earlier})"


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
