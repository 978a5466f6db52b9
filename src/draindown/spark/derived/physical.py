"""The physical plan of the next batch of a derived flow, with what it shuffles, pushes down and
leaves out.

It is that of the frame which a batch would write, made by the same functions, and nothing is
written. The keys that changes touch are found as in a batch, since the files that are left out
follow from them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from draindown.spark.derived import derive, recompute
from draindown.spark.derived.batch import DeriveBatch
from draindown.spark.derived.scope import Everything
from draindown.spark.derived.touched import Work
from draindown.spark.session import configured

_NODE = re.compile(r"^(?P<bars>[ :+\-]*)(?P<name>.*?) \((?P<number>\d+)\)\s*$")
_DETAIL = re.compile(r"^\((\d+)\) ")
_MARKS = ("PushedFilters", "PartitionFilters", "DataFilters")


@dataclass(frozen=True)
class Reads:
    """What the batch reads of a source table: files of all that it has, by their statistics, and
    the rows in them.
    """

    table: str
    files: int
    of_files: int
    rows: int


@dataclass(frozen=True)
class Physical:
    """A physical plan.

    Attributes:
        of: what the batch would do: recompute what changes touch, or compare all rows.
        plan: the tree of operators as text, one a line; each shuffle, broadcast and scan is marked.
        shuffles, broadcasts: their numbers.
        pushed: what is pushed down into the scans, one for each that has filters.
        reads: of each source table, the files that are read and those that are left out.
    """

    of: str
    plan: str
    shuffles: int
    broadcasts: int
    pushed: Sequence[str]
    reads: Sequence[Reads]


def physical(spark: SparkSession, batch: DeriveBatch) -> Physical:
    """Return the plan of a batch over the versions of its slice.

    Changes are read, to find the keys that they touch; of a fill nothing is. Raises as `derive`,
    and writes nothing.
    """
    with ExitStack() as kept:
        work = _work(spark, batch, kept)
        work, held, again = derive.prepared(spark, work, kept)
        sources = [one.possible for one in again]
        fated = recompute.difference(
            work.resolved.kind, sources, work.scope, None if held is None else held.rows
        )
        tree, pushed = marked(_formatted(fated))
        reads = [
            Reads(str(table), *one.files, one.size.rows)
            for table, one in zip(batch.flow.source.read, again, strict=True)
        ]
    of = "compare all rows" if batch.slice.is_fill else "recompute what changes touch"
    return Physical(of, tree, tree.count(_SHUFFLE), tree.count(_BROADCAST), pushed, reads)


def _work(spark: SparkSession, batch: DeriveBatch, kept: ExitStack) -> Work:
    if not batch.slice.is_fill:
        return derive.read(spark, batch, kept).work
    found = derive.opened(spark, batch, kept)
    scope = Everything(
        batch.slice.bucket, batch.slice.bucket.pruning(found.resolved.kind.scope_keys)
    )
    return Work(batch, found.sources, found.resolved, scope, batch.ledger_row("derive"), [], 0, [])


def _formatted(frame: DataFrame) -> str:
    jvm = frame.sparkSession._jvm
    assert jvm is not None  # a classic session has one
    with configured(frame.sparkSession, _WHOLE):
        # as DataFrame.explain
        return str(jvm.PythonSQLUtils.explainString(frame._jdf.queryExecution(), "formatted"))


_WHOLE = {"spark.sql.debug.maxToStringFields": "10000"}
"""Spark cuts lists of columns and filters short by default."""
_SHUFFLE, _BROADCAST = "   <- shuffle", "   <- broadcast"


def marked(text: str) -> tuple[str, list[str]]:
    """Return the tree of Spark's `formatted` plan with marks, and what is pushed down into its
    scans.
    """
    lines = text.splitlines()
    details = _details(lines)
    tree: list[str] = []
    pushed: list[str] = []
    for line in _tree(lines):
        node = _NODE.match(line)
        name = node["name"].removeprefix("* ") if node else ""
        mark = ""
        if name.startswith("BroadcastExchange"):
            mark = _BROADCAST
        elif "Exchange" in name and not name.startswith("Reused"):
            mark = _SHUFFLE
        elif (
            node
            and name.startswith("Scan")
            and (found := _filters(details.get(node["number"], ())))
        ):
            mark = f"   <- pushed: {found}"
            pushed.append(found)
        tree.append(f"{line.rstrip()}{mark}")
    return "\n".join(tree), pushed


def _tree(lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the tree: those after the first heading, up to an empty one."""
    within = False
    for line in lines:
        if within and not line.strip():
            return
        if within:
            yield line
        within = within or line.startswith("== Physical Plan ==")


def _details(lines: Sequence[str]) -> dict[str, list[str]]:
    """Return the lines about each node, by its number."""
    found: dict[str, list[str]] = {}
    number = ""
    for line in lines:
        if begun := _DETAIL.match(line):
            number = begun[1]
        elif number and line.strip():
            found.setdefault(number, []).append(line)
    return found


def _filters(details: Sequence[str]) -> str:
    told = []
    for line in details:
        name, _, value = line.partition(": ")
        if name in _MARKS and value.strip() not in ("", "[]"):
            told.append(f"{name} {value.strip()}")
    return "; ".join(told)
