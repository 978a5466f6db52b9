"""The lease of a flow, with the fence that stops what an earlier driver has in flight."""

from __future__ import annotations

from draindown.lake.layout import FlowLayout
from draindown.lease.lease import Lease
from draindown.recovery import fencing
from draindown.spec.models import LeaseSpec


def lease_of(layout: FlowLayout, terms: LeaseSpec, *, owner: str, run_id: str) -> Lease:
    """Return the lease of a flow, not yet taken. Errors are those of `Lease`."""
    return Lease(layout, terms, owner=owner, run_id=run_id, fence=fencing.write)
