"""Examine the sinks of a flow: whether they answer, and have what was sent to them."""

from __future__ import annotations

from contextlib import closing

from draindown.doctor.model import Desk
from draindown.flow import sink_columns, sink_state
from draindown.recovery import replay
from draindown.runs.request import Request
from draindown.sinks import registry


def look_at_sinks(desk: Desk, request: Request) -> None:
    """Examine the sinks. Raises like `sink_columns.refuse_unready`."""
    sinks = request.declared.sinks
    desk.say("sinks", ", ".join(sinks))
    for finding in sink_columns.findings(request, desk.layout):
        desk.wrong("sink-stale", "sinks", f"sink {finding.subject} {finding.detail}", finding.next)
    if not desk.at_work:
        begun = {one.kind: one for one in replay.unfinished(desk.layout)}
        for name, one in sink_state.in_flight(desk.layout).items():
            text = (
                f"sink {name} has batch {one.number} of kind {one.kind}, and the table does not yet"
            )
            # a run finishes those of the source, a person all others
            say = desk.note if one.kind == "drain" else desk.wrong
            then = sink_state.finishing(desk.layout, one)
            if again := begun.get(one.kind):
                then = desk.command("replay", f" {again.options} --yes")
            say("sink-batch-in-flight", "sinks", text, then)
    sink_columns.refuse_unready(request, desk.layout)
    for name in sinks:
        _compare(desk, request, name)


def _compare(desk: Desk, request: Request, name: str) -> None:
    """Compare the newest batches that were sent with those that the sink has: it may have been
    restored from a copy.
    """
    place = sink_columns.place_of(request, name)
    with closing(registry.sink_of(request.declared.sinks[name], place)) as target:
        for text in sink_columns.behind(request, desk.layout, name, target):
            desk.wrong("sink-behind", "sinks", text, sink_columns.fill_command(request, name))
