"""What a person can do about a batch of a derived flow that can't be computed.

The versions that a slice reads are pinned: a run reads the same rows again, whatever was corrected
in the source since. A reset pins new ones. Another query voids a slice only while nothing of its
generation is in the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from draindown.base.errors import TerminalError
from draindown.base.formatting import shortened
from draindown.spark.derived.batch import DeriveBatch
from draindown.spark.derived.touched import Work


def once_corrected(batch: DeriveBatch) -> list[str]:
    """Return the commands that help once the file, or what the source holds, is corrected."""
    if batch.writer.layout.staged:
        return [f"{_anew(batch)}   # once it is corrected, then begin the rebuild anew"]
    if _can_be_void(batch):
        return [
            f"{_run(batch)}   # once the file is corrected",
            f"{_anew(batch)}   # once the source is corrected",
        ]
    return [f"{_anew(batch)}   # once the file or the source is corrected"]


def not_computed(batch: DeriveBatch, found: str) -> TerminalError:
    """Return the error `group-not-computed`. `found`: names the group, and why Spark can't compute
    it.
    """
    layout = batch.writer.layout
    read = " and ".join(one.path for one in batch.slice.tables)
    rebuild = f"draindown rebuild {layout.pipeline}/{layout.flow}"
    edited = (
        _run(batch)
        if _can_be_void(batch)
        else f"{_anew(batch)}, and begin anew"
        if layout.staged
        else rebuild
    )
    return TerminalError(
        "group-not-computed",
        tried=f"recompute the keys of flow {layout.flow} of pipeline {layout.pipeline} from {read}",
        found=found,
        changed="nothing of this batch was written; other flows go on",
        next=[
            f"correct the rows of that group where they come from, run their flow, then {_anew(batch)}"
            "   # a run would read the same versions again",
            f"have the expression, or the processor, take such a value (try_divide, nullif, a decimal), then {edited}",
        ],
    )


@contextmanager
def source_types_named(work: Work) -> Iterator[None]:
    """Name the source columns where the table has other types than the query gives.

    Another query is `derivation-changed` before, so a source changed. Raises TerminalError
    `table-mismatch`.
    """
    try:
        yield
    except TerminalError as error:
        if error.code != "table-mismatch":
            raise
        layout = work.batch.writer.layout
        read = zip(work.batch.flow.source.read, work.sources, work.resolved.used, strict=True)
        columns = [
            f"{name} {rows.schema[name].dataType.simpleString()} of table {table}"
            for table, rows, used in read
            for name in used
        ]
        differing = error.found.replace(" in the spec", " by the query")
        back = "put `partition_by` back, or the types of these columns in the flows that write them"
        raise TerminalError(
            error.code,
            tried=error.tried,
            found=f"{differing}; the query reads {shortened(', '.join(columns))}",
            changed="no row of the table",
            next=[
                f"draindown rebuild {layout.pipeline}/{layout.flow}   # computes it anew, with the types of now",
                f"{back}, then {_anew(work.batch)}",
            ],
        ) from error


def _can_be_void(batch: DeriveBatch) -> bool:
    return batch.kind == "drain" and not batch.writer.batch and not batch.writer.layout.staged


def _run(batch: DeriveBatch) -> str:
    return f"draindown run {batch.writer.layout.pipeline}/{batch.writer.layout.flow}"


def _anew(batch: DeriveBatch) -> str:
    """Return the command after which the sources are read at the versions that are published by
    then.
    """
    layout = batch.writer.layout
    own = f"{layout.pipeline}/{layout.flow}"
    return f"draindown rebuild {own} --abort --yes" if layout.staged else f"draindown reset {own}"
