"""Find the unit of a batch that Spark can't read, although its source could when it was pinned.

This is rare: damage that only one of two readers detects, or a value on which the contract raises
an error instead of refusing its row. Nothing of the batch is written yet, so the unit can be left
out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from draindown.base.errors import DraindownError, TerminalError, first_line
from draindown.base.formatting import count, shortened
from draindown.config.landing import FlowSpec
from draindown.lake.home import FlowHome
from draindown.spark.contract.parsing import parse
from draindown.spark.contract.records import records_of
from draindown.spark.sources.port import Input

_SOME_TIME = datetime(2000, 1, 1, tzinfo=UTC)
"""When a unit's records arrived, for rules: which of them hold is of no interest."""


@contextmanager
def named(spark: SparkSession, flow: FlowSpec, layout: FlowHome, read: Input) -> Iterator[None]:
    """Replace an error of the block by TerminalError `file-unreadable` if some units of the input
    can't be read.
    """
    try:
        yield
    except DraindownError:
        raise
    except Exception as error:
        if (known := read.failed(error)) is not None:
            raise known from error
        found = _among(spark, flow, layout, read)
        if not found or (len(found) == len(read.units) > 1):
            raise
        raise TerminalError(
            "file-unreadable",
            tried=f"read {count(len(read.units), read.noun)} of flow {layout.flow}",
            found="; ".join(f"{name}: {why}" for name, why in list(found.items())[:5]),
            changed="nothing of this batch is in the table",
            next=[
                read.leaving_out(found),
                f"draindown rebuild {layout.pipeline}/{layout.flow} --yes"
                if layout.staged
                else f"draindown run {layout.pipeline}",
            ],
            in_order=True,
        ) from error


def _among(spark: SparkSession, flow: FlowSpec, layout: FlowHome, read: Input) -> dict[str, str]:
    """Return the units that fail when read alone, with Spark's error; none if Spark fails without
    any unit too.

    Without a unit it shuffles as much as with one: its scratch directory may be full or gone.
    """
    # two partitions: a single one is not shuffled, and writes nothing to the scratch directory
    if _fails(lambda: spark.range(0, 2, 1, 2).select(F.max(F.xxhash64("id"))).collect()):
        return {}
    tried = {
        unit.name: _fails(partial(_read, spark, flow, layout.spool, read.alone(unit)))
        for unit in read.units
    }
    return {name: why for name, why in tried.items() if why}


def _read(spark: SparkSession, flow: FlowSpec, spool: str, alone: Input) -> None:
    """Read a unit: through the contract if it can be left out whatever is wrong with it, else as it
    comes.
    """
    records = records_of(alone.read(spark, flow, spool), flow)
    if alone.by_name:
        parse(spark, flow, records, _SOME_TIME, all_raw=True).write.format("noop").mode(
            "overwrite"
        ).save()
        return
    for part in records:
        part.frame.select(F.max(F.xxhash64(part.raw))).collect()


def _fails(work: Callable[[], object]) -> str:
    """Return the first line of the error that `work()` raises; empty if it succeeds."""
    try:
        work()
    except Exception as error:  # noqa: BLE001 - whatever a reader of broken input raises
        return shortened(first_line(error) or type(error).__name__)
    return ""
