"""Losses that a person accepted, and records that a batch did not find: ranges of offsets, each
with its reason.

losses    accepted: nobody reads them any more; of the kind `records-absent`, fewer records than offsets may be there
absent    what the newest batch that was refused for it did not find: a person may accept it
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import astuple
from datetime import datetime
from typing import Any

from draindown.lake.home import FlowHome
from draindown.sources.intake import Origin, record_id
from draindown.sources.kafka.offsets import Loss, LossKind, Span

_WITHOUT = "the losses that were accepted are red again, and can be accepted again"
_ABSENT: LossKind = "records-absent"


def accepted(layout: FlowHome) -> list[Span]:
    """Return the ranges that are given up. Raises TerminalError `state-damaged`."""
    return [_span(one) for one in _kept(layout)["losses"] if one["kind"] != _ABSENT]


def may_lack(layout: FlowHome) -> list[Span]:
    """Return the ranges in which records may be absent, as a person accepted. Raises as
    `accepted`.
    """
    return [_span(one) for one in _kept(layout)["losses"] if one["kind"] == _ABSENT]


def given_up(layout: FlowHome, records: Mapping[str, Origin]) -> set[str]:
    """Return those of `records`, as of `intake.find`, that lie in a range that is given up. Raises
    as `accepted`.
    """
    places: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for id, (unit, position) in records.items():
        places[unit].append((position, id))
    return {
        id
        for span in accepted(layout)
        for position, id in places.get(span.unit, ())
        if span.start <= position < span.until
        and record_id(span.unit, position, span.topic_id) == id
    }


def accept(layout: FlowHome, losses: Iterable[Loss], *, by: str, note: str, at: datetime) -> None:
    """Write down that losses are accepted. Idempotent. Call it under the lease."""
    have = _kept(layout)
    known = {(_span(one), one["kind"]) for one in have["losses"]}
    said = {"reason": note, "by": by, "at": at.isoformat(timespec="seconds")}
    new = [one for one in losses if (one.span, one.kind) not in known]
    if new:
        fresh = [{"span": list(astuple(one.span)), "kind": one.kind} | said for one in new]
        left = [one for one in have["absent"] if _span(one) not in {loss.span for loss in new}]
        layout.accepted_losses.write({"losses": [*have["losses"], *fresh], "absent": left})


def absent(layout: FlowHome) -> list[Loss]:
    """Return the ranges in which a batch did not find all records. Raises as `accepted`."""
    return [Loss(_ABSENT, _span(one), one["detail"]) for one in _kept(layout)["absent"]]


def note_absent(layout: FlowHome, losses: Iterable[Loss]) -> None:
    """Write down in which ranges a batch did not find all records; none once it did. Call it under
    the lease.
    """
    have = _kept(layout)
    found = [{"span": list(astuple(one.span)), "detail": one.detail} for one in losses]
    if found != have["absent"]:
        layout.accepted_losses.write({"losses": have["losses"], "absent": found})


def _span(one: Mapping[str, Any]) -> Span:
    return Span(*one["span"])


def _kept(layout: FlowHome) -> dict[str, list[dict[str, Any]]]:
    found = layout.accepted_losses.parsed(_parsed, without=_WITHOUT)
    return {"losses": [], "absent": []} if found is None else found


def _parsed(content: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    losses = list(content["losses"])
    for one in losses:
        _span(one)
    return {"losses": losses, "absent": list(content["absent"])}
