"""Find the file of a batch that Spark can't read, although inspection at intake could read it.

This is rare: damage that only one of two readers detects. Nothing of the batch is written yet, so the file can be left
out.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from draindown.base.errors import DraindownError, TerminalError
from draindown.base.formatting import count, shortened
from draindown.lake.layout import FlowLayout
from draindown.spark.contract import records
from draindown.spark.sources.readers import InputFile
from draindown.spec.models import FlowSpec


@contextmanager
def named(spark: SparkSession, flow: FlowSpec, layout: FlowLayout, files: Sequence[InputFile]) -> Iterator[None]:
    """Replace an error of the block by TerminalError `file-unreadable` if some of `files` can't be read."""
    try:
        yield
    except DraindownError:
        raise
    except Exception as error:
        found = _among(spark, flow, layout, files)
        if not found or (len(found) == len(files) > 1):
            raise
        raise TerminalError(
            "file-unreadable",
            tried=f"read {count(len(files), 'file')} of flow {layout.flow}",
            found="; ".join(f"{path}: {why}" for path, why in list(found.items())[:5]),
            changed="nothing of this batch is in the table",
            next=[discarding(layout, found), f"draindown run {layout.pipeline}"],
            in_order=True,
        ) from error


def discarding(layout: FlowLayout, paths: Iterable[str]) -> str:
    """Return the command that leaves files out of the batch that failed on them."""
    chosen = " ".join(f"--path {shlex.quote(path)}" for path in paths)
    return f"draindown quarantine discard {layout.pipeline} --flow {layout.flow} --files {chosen} --yes"


def _among(spark: SparkSession, flow: FlowSpec, layout: FlowLayout, files: Sequence[InputFile]) -> dict[str, str]:
    """Return the files that fail when read alone, with Spark's error; none if Spark fails without any file too."""
    if _fails(lambda: spark.range(1).collect()):
        return {}
    tried = {file.path: _fails(partial(_read, spark, flow, layout.spool, file)) for file in files}
    return {path: why for path, why in tried.items() if why}


def _read(spark: SparkSession, flow: FlowSpec, spool: str, file: InputFile) -> None:
    for part in records.read(spark, flow, [file], spool):
        part.frame.select(F.max(F.xxhash64(part.raw))).collect()


def _fails(work: Callable[[], object]) -> str:
    """Return the first line of the error that `work()` raises; empty if it succeeds."""
    try:
        work()
    except Exception as error:  # noqa: BLE001 - whatever a reader of a broken file raises
        return shortened((str(error).strip() or type(error).__name__).splitlines()[0])
    return ""
