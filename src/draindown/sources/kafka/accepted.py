"""Losses that a person accepted: ranges of offsets that nobody reads any more, each with its reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple
from datetime import datetime
from typing import Any

from draindown.lake.documents import kept, write_json
from draindown.lake.layout import FlowLayout
from draindown.sources.kafka.offsets import Span

_WITHOUT = "the losses that were accepted are red again, and can be accepted again"


def accepted(layout: FlowLayout) -> list[Span]:
    """Return the accepted ranges. Raises TerminalError `state-damaged`."""
    return [Span(*one["span"]) for one in _kept(layout)]


def accept(layout: FlowLayout, spans: Iterable[Span], *, by: str, note: str, at: datetime) -> None:
    """Write down that ranges are given up. Idempotent. Call it under the lease."""
    have = _kept(layout)
    known = {Span(*one["span"]) for one in have}
    fresh = [
        {"span": list(astuple(span)), "reason": note, "by": by, "at": at.isoformat(timespec="seconds")}
        for span in spans
        if span not in known
    ]
    if fresh:
        write_json(layout.accepted_losses, {"losses": [*have, *fresh]})


def _kept(layout: FlowLayout) -> Sequence[dict[str, Any]]:
    return kept(layout.accepted_losses, lambda content: list(content["losses"]), without=_WITHOUT) or []
