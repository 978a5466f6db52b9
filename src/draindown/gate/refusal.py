"""The error of a failed gate."""

from __future__ import annotations

import shlex

from draindown.base import formatting
from draindown.base.errors import GateFailed
from draindown.gate.published import REFUSED_SHARE, UNJUDGED
from draindown.lake.layout import FlowLayout
from draindown.runs.report import CheckPart, Expectation

_SHOWN_FAILURES = 10


class Refused(GateFailed):
    """The error of a failed gate, with all verdicts."""

    part: CheckPart | None = None


def refusal(layout: FlowLayout, part: CheckPart, *, keyed: bool) -> Refused:
    """Return the error for a failed check. It carries `part`. Only the rows of a keyed table can be withdrawn."""
    failed = [e for e in part.expectations if not e.success and not e.waived]
    shown = [_sentence(e) for e in failed[:_SHOWN_FAILURES]]
    if len(failed) > len(shown):
        shown.append(f"and {len(failed) - len(shown)} more")
    waive, withdraw = (f"draindown gate {verb} {layout.pipeline}" for verb in ("waive", "quarantine"))
    judged = [e for e in failed if not e.detail.startswith(UNJUDGED)]  # a waiver can't repair a suite
    single = [e for e in failed if keyed and e.scope == "changed" and e.unexpected]
    refused = [e for e in failed if e.name == REFUSED_SHARE]
    before = "none was published yet" if part.published_before is None else f"version {part.published_before} stays"
    waiting = formatting.count(part.changed_rows, "row")
    error = Refused(
        "gate-failed",
        tried=f"publish version {part.version} of {layout.table_name}: {waiting} not yet published",
        found="; ".join(shown),
        changed=f"nothing was published ({before}); results: {part.page or layout.all_validations}",
        next=[
            *(f"draindown quarantine list {layout.pipeline} --flow {layout.flow}" for _ in refused),
            *(f"draindown gate show {layout.pipeline} --flow {layout.flow}" for _ in range(len(failed) > len(refused))),
            *(f"{withdraw} {shlex.quote(e.name)} --flow {layout.flow}" for e in single[:1]),
            *(f"{waive} {shlex.quote(e.name)} --flow {layout.flow} --reason TEXT" for e in judged[:1]),
            *([f"draindown validate {layout.pipeline}   # once the suite is corrected"] if judged != failed else ()),
        ],
    )
    error.part = part
    return error


def _sentence(e: Expectation) -> str:
    counts = f"{e.unexpected:,} of {formatting.count(e.judged, 'row')}" if e.judged else ""
    sample = f"such as {', '.join(map(str, e.sample[:3]))}" if e.sample else ""
    return f"{e.name}: " + ", ".join(part for part in (counts, sample, formatting.shortened(e.detail)) if part)
