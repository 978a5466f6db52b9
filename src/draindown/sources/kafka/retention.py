"""Warn of unread records that the brokers will delete soon. A warning never delays a drain: that
would be the loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from draindown.base.findings import Finding
from draindown.base.formatting import age

_NEAR = 0.7  # of the time that a topic keeps records
_SHOWN = 5


@dataclass(frozen=True)
class Policy:
    """What a topic's settings say of its records' lives. `retention_ms`, `retention_bytes`: None
    without a bound.
    """

    compacted: bool
    deleted: bool
    retention_ms: int | None
    retention_bytes: int | None


def policy(settings: Mapping[str, str | None]) -> Policy:
    """Return what the settings of a topic say."""

    def bound(name: str) -> int | None:
        value = int(settings.get(name) or -1)
        return value if value >= 0 else None

    policies = (settings.get("cleanup.policy") or "delete").split(",")
    return Policy(
        "compact" in policies, "delete" in policies, bound("retention.ms"), bound("retention.bytes")
    )


def findings(
    oldest: Mapping[tuple[str, int], datetime],
    policies: Mapping[str, Policy],
    now: datetime,
    run: str,
) -> list[Finding]:
    """Return a finding for each partition whose oldest unread record has lived most of its time.

    `oldest`: when it was written, by topic and partition. `run`: the command that drains. Brokers
    count from the record's own timestamp, so a record that says it is old is deleted at once.
    """
    found = [
        (at, topic, partition, timedelta(milliseconds=policy.retention_ms))
        for (topic, partition), at in oldest.items()
        if (policy := policies.get(topic)) and policy.deleted and policy.retention_ms is not None
    ]
    due = sorted(
        (at, topic, partition, keeps)
        for at, topic, partition, keeps in found
        if now - at > _NEAR * keeps
    )
    return [
        Finding(
            kind="retention",
            subject=f"{topic}/{partition}",
            detail=f"the oldest unread record is {age((now - at).total_seconds())} old, and the topic keeps records "
            f"for {age(keeps.total_seconds())}",
            next=f"{run}   # now, and more often; or have the topic keep records for longer (retention.ms)",
        )
        for at, topic, partition, keeps in due[:_SHOWN]
    ]


def expires(
    oldest: Mapping[tuple[str, int], datetime], policies: Mapping[str, Policy]
) -> float | None:
    """Return when the brokers may delete the first unread record, in seconds since 1970; None if
    they keep them all.

    `oldest`: as for `findings`. What they delete to save space is not foreseen.
    """
    ends = [
        at.timestamp() + policy.retention_ms / 1000
        for (topic, _), at in oldest.items()
        if (policy := policies.get(topic)) and policy.deleted and policy.retention_ms is not None
    ]
    return min(ends, default=None)


def keeps(policies: Iterable[Policy]) -> float | None:
    """Return for how many seconds the topic that keeps records shortest keeps them; None if all
    keep them for ever.
    """
    ends = [
        one.retention_ms / 1000 for one in policies if one.deleted and one.retention_ms is not None
    ]
    return min(ends, default=None)
