"""The class of each kind of derivation."""

from __future__ import annotations

from draindown.config.derived import DerivedFlow
from draindown.config.history import History
from draindown.config.join import Join
from draindown.config.lookup import Lookup
from draindown.config.processor import Processor
from draindown.config.query import Query
from draindown.config.ranking import Deduplicate, Top
from draindown.config.session import Session
from draindown.config.window import Window
from draindown.spark.derived.histories import Histories
from draindown.spark.derived.joined import Joined
from draindown.spark.derived.kind import Kind
from draindown.spark.derived.looked_up import LookedUp
from draindown.spark.derived.processed import Processed
from draindown.spark.derived.query import KeyedQuery
from draindown.spark.derived.ranked import FirstPerKey, TopOfGroup
from draindown.spark.derived.sessions import Sessions
from draindown.spark.derived.window import Windows
from draindown.spark.tuning import TUNING, Tuning


def kind_of(flow: DerivedFlow, tuning: Tuning = TUNING) -> Kind:
    """Return the derivation of a flow."""
    match flow.derivation:
        case Window():
            return Windows(flow.derivation)
        case Session():
            return Sessions(flow.derivation, flow.source.read[0].table)
        case Query():
            return KeyedQuery(flow.derivation, flow.source.read)
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
