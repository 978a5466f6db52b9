"""Delta transaction ids (`txn` actions): they make each writer's writes of one purpose
idempotent.
"""

from __future__ import annotations

from typing import NewType

WriterId = NewType("WriterId", str)
"""The `appId` of a writer's Delta transactions. Their versions are its batch numbers."""
