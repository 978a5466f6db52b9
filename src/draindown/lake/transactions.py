"""Delta transaction ids (`txn` actions): they make each writer's writes of one purpose
idempotent.
"""

from __future__ import annotations

from typing import NewType

from draindown.lake.home import FlowHome

WriterId = NewType("WriterId", str)
"""The `appId` of a writer's Delta transactions. Their versions are its batch numbers."""


def app_id(layout: FlowHome, generation: int, purpose: str, kind: str = "source") -> WriterId:
    """Return the id of a generation's writes of one kind and purpose (`rows`, `tombstones`,
    `quarantine`).
    """
    return WriterId(f"draindown:{layout.pipeline}:{layout.flow}:{generation}:{kind}:{purpose}")
