"""The bounds of a copy: it reads a part of topics that go on, the same part however often and
whenever it is asked.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, replace

from draindown.base.errors import TerminalError
from draindown.lake.documents import Document
from draindown.lake.home import FlowHome
from draindown.sources.kafka.client import Seen
from draindown.sources.kafka.offsets import Span

_WITHOUT = "the copy reads whatever the topics hold"


def confine(layout: FlowHome, spans: Iterable[Span]) -> None:
    """Confine a copy that has not begun to spans, one per partition; it sees no other partition."""
    layout.bounds.write({"spans": [list(astuple(span)) for span in spans]})
    _mark(layout).write({"of": layout.lake})


def within(seen: Seen, layout: FlowHome) -> Seen:
    """Return what a flow sees of its topics: all, or the part that it is confined to.

    Raises TerminalError `state-damaged`, also in a copy whose lake was deleted with what confined
    it.
    """
    spans = layout.bounds.parsed(
        lambda content: [Span(*one) for one in content["spans"]], without=_WITHOUT
    )
    if spans is None:
        if _mark(layout).exists:
            raise TerminalError(
                "state-damaged",
                tried=f"read the part of its topics that this copy of flow {layout.flow} is confined to",
                found=f"{layout.bounds} is gone, and {_mark(layout)} says that this is a copy",
                changed="nothing was pinned or read",
                next=[
                    f"restore {layout.bounds} from another copy",
                    f"draindown drill all {layout.pipeline}/{layout.flow}   # copies anew",
                ],
            )
        return seen
    inside = {span.place: span for span in spans}
    parts = [
        replace(
            one,
            beginning=max(one.beginning, span.start),
            end=max(one.beginning, min(one.end, span.until)),
        )
        for one in seen.partitions
        if (span := inside.get(one.place))
    ]
    return replace(seen, partitions=tuple(parts))


def _mark(layout: FlowHome) -> Document:
    """Return the mark beside a copy's lake, which outlives the lake: a copy without bounds would
    read everything.
    """
    return Document(f"{layout.root}.confined")
