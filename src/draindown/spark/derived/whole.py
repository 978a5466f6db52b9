"""Prove a derived table with Spark: the whole query over the source, where no other engine is
certain to agree.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark import __version__
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from draindown.base.clock import now
from draindown.config.derived import DerivedFlow
from draindown.config.session import Session
from draindown.config.window import Window
from draindown.lake.home import FlowHome
from draindown.lake.table import Table
from draindown.proof.certificate import SHOWN, Certificate, Falsehood, What, snapshot
from draindown.proof.digest import digest
from draindown.proof.windows import scale_of
from draindown.spark.derived import amounts, difference, images
from draindown.spark.derived.derive import SETTINGS
from draindown.spark.derived.difference import DELETE, FATE, INSERT, UNCHANGED, UPDATE
from draindown.spark.derived.kind import Kind
from draindown.spark.derived.late import sieves
from draindown.spark.derived.query import KeyedQuery
from draindown.spark.derived.registry import kind_of
from draindown.spark.derived.sessions import Sessions
from draindown.spark.derived.window import Windows
from draindown.spark.frames import persisted
from draindown.spark.session import configured
from draindown.spark.sql import quoted
from draindown.spark.targets.pruning import Pruning

_PARTS = 1_000_000
_WHAT: dict[str, What] = {
    INSERT: "missing",
    DELETE: "unexpected",
    UPDATE: "wrong",
    UNCHANGED: "doubled",
}


def prove(
    spark: SparkSession,
    layout: FlowHome,
    flow: DerivedFlow,
    sources: Sequence[Table],
    table: Table,
    share: float = 1.0,
    decided: int = 0,
) -> Certificate:
    """Recompute the flow's table from `sources` and compare it with `table`, each at the version it
    was opened with.

    `share`: the share of the keys to compare, 0 to 1. `decided`: the newest decision about late
    rows that counts.
    """
    begun, kind = time.monotonic(), kind_of(flow)
    count = sieves(spark, layout, flow, (0, decided), kind.relations)
    with configured(spark, SETTINGS):
        rows = [
            sieve.counting(images.at(spark, one.path, one.version, sieve.own))
            for one, sieve in zip(sources, count, strict=True)
        ]
        chosen = Share(share)
        keyed = [one.within(own, chosen) for one, own in zip(kind.relations, rows, strict=True)]
        expected = _scaled(kind, rows[0]).result(*keyed)
        scales = {
            name: scale_of(name) for name in expected.columns if scale_of(name) in expected.columns
        }
        held = chosen.within(images.at(spark, table.path, table.version), kind.scope_keys)
        fated = difference.compare(
            expected, held, kind.row_keys, computed=kind.computed, scales=scales
        )
        with persisted(fated):
            differing, falsehoods = _falsehoods(fated, kind)
            keys = difference.count(fated, kind.row_keys).keys
        number = held.count()
    return Certificate(
        pipeline=layout.pipeline,
        flow=layout.flow,
        kind=flow.kind,
        engine=f"spark {__version__}, the whole query",
        sources=[snapshot(one) for one in sources],
        table=snapshot(table),
        share=share,
        expected=sum(keys.values()) - keys.get(DELETE, 0),
        found=number,
        digest=digest(table),
        differing=differing,
        falsehoods=falsehoods,
        at=now(),
        seconds=round(time.monotonic() - begun, 3),
    )


def _scaled(kind: Kind, rows: DataFrame) -> Kind:
    """Return a kind whose result also has the size of what its sums of doubles add up. `rows`:
    those of its source.
    """

    def measures(spec: Window | Session) -> dict[str, Any]:
        return {"measures": {**spec.measures, **amounts.of_measures(spec.measures, rows)}}

    match kind:
        case Windows():
            return replace(kind, spec=kind.spec.model_copy(update=measures(kind.spec)))
        case Sessions():
            return replace(kind, spec=kind.spec.model_copy(update=measures(kind.spec)))
        case KeyedQuery():
            return replace(kind, scaled=True)
        case _:
            return kind


@dataclass(frozen=True)
class Share:
    """A share of the keys, 0 to 1, by their hash."""

    share: float

    @property
    def pruning(self) -> Pruning:
        """No predicates."""
        return Pruning()

    def within(self, rows: DataFrame, names: Sequence[str]) -> DataFrame:
        """Return the rows whose key, in the columns `names`, is one of them."""
        if self.share >= 1:
            return rows
        key = F.xxhash64(*(F.col(quoted(name)) for name in names))
        return rows.where(F.pmod(key, F.lit(_PARTS)) < round(self.share * _PARTS))


def _falsehoods(fated: DataFrame, kind: Kind) -> tuple[int, list[Falsehood]]:
    keys = [F.col(quoted(key)) for key in kind.row_keys]
    by_key = fated.groupBy(*keys).agg(F.min(FATE).alias(FATE), F.count("*").alias("rows"))
    wrong = by_key.where((F.col(FATE) != UNCHANGED) | (F.col("rows") > 1))
    return wrong.count(), [
        _falsehood(row, kind) for row in wrong.orderBy(*keys).limit(SHOWN).collect()
    ]


def _falsehood(row: Row, kind: Kind) -> Falsehood:
    what = "doubled" if row["rows"] > 1 else _WHAT[row[FATE]]
    return Falsehood(what, {name: row[at] for at, name in enumerate(kind.row_keys)}, {})
