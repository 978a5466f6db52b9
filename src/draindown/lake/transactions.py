"""Delta transaction ids: what names one writer's writes of one purpose, so that none is made twice."""

from __future__ import annotations

from typing import NewType

from draindown.lake.layout import FlowLayout

WriterId = NewType("WriterId", str)
"""The `appId` of a writer's Delta transactions; their versions are the numbers of its batches."""


def app_id(layout: FlowLayout, generation: int, purpose: str, kind: str = "source") -> WriterId:
    """The id of one purpose (`rows`, `tombstones`, `quarantine`) of a generation's batches of one kind."""
    return WriterId(f"draindown:{layout.pipeline}:{layout.flow}:{generation}:{kind}:{purpose}")
