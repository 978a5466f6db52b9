"""Delta transaction ids: what names one writer's writes of one purpose, so that none is made twice."""

from __future__ import annotations

from draindown.lake.layout import FlowLayout


def app_id(layout: FlowLayout, generation: int, purpose: str, kind: str = "source") -> str:
    """The Delta transaction id of one purpose (`rows`, `tombstones`, `quarantine`) of one generation's writes."""
    return f"draindown:{layout.pipeline}:{layout.flow}:{generation}:{kind}:{purpose}"
