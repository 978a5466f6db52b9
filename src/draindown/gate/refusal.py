"""The error of a failed gate."""

from __future__ import annotations

import shlex

from draindown.base import formatting
from draindown.base.errors import GateFailed
from draindown.base.findings import Finding
from draindown.gate.published import QUARANTINED_SHARE, UNJUDGED
from draindown.lake.home import FlowHome
from draindown.runs.report import CheckPart, Expectation

_SHOWN_FAILURES = 10
_COMMANDS = 3  # failed expectations that each get their commands


class Refused(GateFailed):
    """The error of a failed gate, with all verdicts."""

    part: CheckPart | None = None


def refusal(layout: FlowHome, part: CheckPart, *, keyed: bool) -> Refused:
    """Return the error for a failed check. It carries `part`. Only the rows of a keyed table can be
    withdrawn.
    """
    failed = [e for e in part.expectations if e.refuses]
    shown = [sentence(e) for e in failed[:_SHOWN_FAILURES]]
    if len(failed) > len(shown):
        shown.append(f"and {len(failed) - len(shown)} more")
    judged = [
        e for e in failed if not e.detail.startswith(UNJUDGED)
    ]  # a waiver can't repair a suite
    single = [e for e in failed if keyed and e.scope == "changed" and e.unexpected]
    refused = [e for e in failed if e.name == QUARANTINED_SHARE]
    before = (
        "none was published yet"
        if part.published_before is None
        else f"version {part.published_before} stays"
    )
    waiting = formatting.count(part.changed_rows, "row")
    error = Refused(
        "gate-failed",
        tried=f"publish version {part.version} of {layout.table_name}: {waiting} not yet published",
        found="; ".join(shown),
        changed=f"nothing was published ({before}); results: {part.page or layout.all_validations}",
        next=[
            *(command for _ in refused for command in _about_rows(layout)),
            *(
                f"draindown gate show {layout.pipeline}/{layout.flow}"
                for _ in range(len(failed) > len(refused))
            ),
            *(_gate("withdraw", layout, e) for e in single[:_COMMANDS]),
            *(f'{_gate("waive", layout, e)} --for "1 day" --note TEXT' for e in judged[:_COMMANDS]),
            *(
                [f"draindown validate {layout.pipeline}   # once the suite is corrected"]
                if judged != failed
                else ()
            ),
        ],
    )
    error.part = part
    return error


def _about_rows(layout: FlowHome) -> list[str]:
    """Return the commands that decide about quarantined rows, after which a check no longer counts
    them.
    """
    rows = f"{layout.pipeline}/{layout.flow}"
    return [
        f"draindown quarantine list {rows}",
        f"draindown quarantine release {rows} --yes   # once the contract or a rule is corrected: lets them in",
        f"draindown quarantine discard {rows} --yes   # gives them up; the next check no longer counts them",
    ]


def _gate(verb: str, layout: FlowHome, e: Expectation) -> str:
    return f"draindown gate {verb} {layout.pipeline}/{layout.flow} {shlex.quote(e.name)}"


def findings(layout: FlowHome, part: CheckPart) -> list[Finding]:
    """Return a finding for each expectation that failed and refuses nothing, by its severity."""
    show = f"draindown gate show {layout.pipeline}/{layout.flow}"
    failed = [e for e in part.expectations if e.is_noted]
    return [
        Finding(kind="expectation", subject=e.name, detail=f"{e.severity}: {told(e)}", next=show)
        for e in failed
    ]


def sentence(e: Expectation) -> str:
    """Return a failed expectation in words."""
    return f"{e.name}: {told(e)}"


def told(e: Expectation) -> str:
    """Return how an expectation failed, in words."""
    counts = f"{e.unexpected:,} of {formatting.count(e.judged, 'row')}" if e.judged else ""
    sample = f"such as {', '.join(e.examples)}" if e.sample else ""
    return ", ".join(part for part in (counts, sample, formatting.shortened(e.detail)) if part)
