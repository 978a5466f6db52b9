"""The audit: everything counted again from the raw files, by code that shares nothing with the drain."""

from draindown.audit.model import Audit, Residue
from draindown.audit.recount import audit

__all__ = ["Audit", "Residue", "audit"]
