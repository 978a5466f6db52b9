"""The class of each kind of derivation."""

from __future__ import annotations

from draindown.spark.derived.histories import Histories
from draindown.spark.derived.joined import Joined
from draindown.spark.derived.kind import Kind
from draindown.spark.derived.looked_up import LookedUp
from draindown.spark.derived.per import PerKey
from draindown.spark.derived.processed import Processed
from draindown.spark.derived.ranked import FirstPerKey, TopOfGroup
from draindown.spark.derived.sessions import Sessions
from draindown.spark.derived.window import Windows
from draindown.spark.tuning import TUNING, Tuning
from draindown.spec.derived import DerivedFlow
from draindown.spec.history import History
from draindown.spec.join import Join
from draindown.spec.lookup import Lookup
from draindown.spec.per import Per
from draindown.spec.processor import Processor
from draindown.spec.ranking import Deduplicate, Top
from draindown.spec.session import Session
from draindown.spec.window import Window


def kind_of(flow: DerivedFlow, tuning: Tuning = TUNING) -> Kind:
    """Return the derivation of a flow."""
    match flow.derivation:
        case Window():
            return Windows(flow.derivation)
        case Session():
            return Sessions(flow.derivation, flow.source.read[0].table)
        case Per():
            return PerKey(flow.derivation, flow.source.read)
        case Join():
            return Joined(flow.derivation, flow.source.read)
        case Lookup():
            return LookedUp(flow.derivation, flow.source.read)
        case Deduplicate():
            return FirstPerKey(flow.derivation, flow.source.read[0].table)
        case Top():
            return TopOfGroup(flow.derivation, flow.source.read[0].table)
        case Processor():
            return Processed(flow.derivation, flow.source.read[0].table, tuning)
        case History():
            return Histories(flow.derivation, flow.source.read[0].table)
