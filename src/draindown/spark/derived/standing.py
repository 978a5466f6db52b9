"""Touched keys that go on from the table: a key's first rows are first among its rows there and
those that came.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from draindown.spark.derived.images import IMAGES, NET
from draindown.spark.derived.keyed_table import KeyedTable
from draindown.spark.derived.kind import Relation, key_names
from draindown.spark.derived.scope import WENT, Scope, Touched, pruning_of
from draindown.spark.frames import persisted
from draindown.spark.sql import quoted
from draindown.spark.targets.pruning import Pruning


@dataclass(frozen=True)
class Standing:
    """The touched keys, of which only those are read again that a row went from.

    What was not among the first rows of a key is not among them once more rows have come. `went`:
    the keys that are read again. `rows`: what stands for the source's rows of the others, with the
    columns that `keyed` returns.
    """

    touched: Touched
    went: Touched
    rows: DataFrame

    @property
    def pruning(self) -> Pruning:
        """Predicates that the keys to read again satisfy."""
        return self.went.pruning

    def within(self, rows: DataFrame, names: Sequence[str]) -> DataFrame:
        """Return the source's rows of keys to read again; of the result's rows, those of all
        touched keys.
        """
        return (self.went if names[0].startswith("_") else self.touched).within(rows, names)


@dataclass(frozen=True)
class StandingTable(KeyedTable):
    """A source of whose keys some go on from the table's rows."""

    def within(self, rows: DataFrame, scope: Scope) -> DataFrame:
        """Return the rows with their keys that are in the scope, and those that stand for what is
        not read again.
        """
        found = scope.within(self.keyed(rows), key_names(self))
        return found.unionByName(scope.rows) if isinstance(scope, Standing) else found


def standing(
    relation: Relation,
    touched: Touched,
    netted: DataFrame,
    held: DataFrame,
    kept: ExitStack,
    *,
    changes: bool = True,
) -> Standing:
    """Return the touched keys, and what stands for the source's rows of those that no row went
    from.

    `netted`: the images of the source's changes, with all of its columns. `held`: rows of the
    table, at least those of the touched keys, with these columns. `changes`: whether rows may have
    gone. The keys to read again are persisted until `kept` closes.
    """
    names, columns = (
        key_names(relation),
        [name for name in netted.columns if name not in (NET, IMAGES)],
    )
    gone = touched.keys.where(F.col(WENT)).select(*names)
    went = Touched(gone, 0, Pruning())
    if changes:
        kept.enter_context(persisted(gone))
        named = [
            F.col(own).alias(name) for own, name in zip(names, relation.scope_keys, strict=True)
        ]
        went = Touched(gone, *pruning_of(gone.select(*named), relation.scope_keys))
    stays = Touched(
        touched.keys.where(~F.col(WENT)).select(*names), touched.number, touched.pruning
    )
    came = netted.where(F.col(NET) > 0).withColumn(
        NET, F.explode(F.array_repeat(F.lit(0), F.col(NET).cast("int")))
    )
    rows = held.select(*map(quoted, columns)).unionByName(came.select(*map(quoted, columns)))
    return Standing(touched, went, stays.within(relation.keyed(rows), names))
