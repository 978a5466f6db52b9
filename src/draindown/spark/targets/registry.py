"""The strategy of each kind of target."""

from __future__ import annotations

from collections.abc import Mapping

from draindown.config.landing import FlowSpec
from draindown.spark.targets.append import Append
from draindown.spark.targets.history import Historical
from draindown.spark.targets.partial import Merging
from draindown.spark.targets.strategy import TargetStrategy
from draindown.spark.targets.upsert import Upsert

_STRATEGIES: Mapping[str, TargetStrategy] = {
    "append": Append(),
    "upsert": Upsert(),
    "partial": Merging(),
    "history": Historical(),
}


def strategy_of(flow: FlowSpec) -> TargetStrategy:
    """Return the strategy for the kind of the flow's target."""
    return _STRATEGIES[flow.target.kind.name]
