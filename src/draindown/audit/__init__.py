"""The audit: recount a flow from its raw files with code that is independent of the drain."""

from draindown.audit.model import Audit, Residue
from draindown.audit.recount import audit

__all__ = ["Audit", "Residue", "audit"]
