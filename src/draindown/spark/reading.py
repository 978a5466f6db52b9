"""Read exactly the files of one batch, with the place of every record.

A record's place is its file and its number in it, from 1. Spark knows no row number, but a partition reads its pieces
of files one after the other, so the ids that rise within (file, block) number the records of that block; with the
counts of the file's earlier blocks they number the file.
"""

from __future__ import annotations

import gzip
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import groupby, islice
from pathlib import Path
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from draindown.spark.evaluation import quoted

PLACE = ("_file", "_block", "_id")
"""Columns every reader adds: the file as Spark names it (URI), the start of the block, a number rising within it."""

_GLOB = re.compile(r"([\[\]{}*?\\])")


@dataclass(frozen=True)
class InputFile:
    """One file of a batch, as the intake recorded it."""

    path: str
    size: int
    mtime_ns: int
    sha256: str
    lines: int | None
    blank: int | None
    records: int | None
    header: str | None = None
    multiline: bool = False
    bom: bool = False

    @property
    def counted(self) -> int:
        """Lines or, in a columnar file, rows that the intake counted."""
        return (self.lines if self.lines is not None else self.records) or 0


def read_text(spark: SparkSession, files: Sequence[InputFile]) -> DataFrame:
    """Lines as `value` string, plus PLACE. Lines end at `\\n`, `\\r\\n` or `\\r`; blank ones are kept."""
    lines = spark.read.text([escape(file.path) for file in files])
    lines = lines.select("value", *_place())
    if any(file.bom for file in files):
        lines = lines.withColumn("value", F.expr("ltrim('\ufeff', value)"))
    return lines


def read_columnar(spark: SparkSession, files: Sequence[InputFile], form: str) -> list[DataFrame]:
    """One frame per distinct file schema: the file's own columns, plus PLACE."""
    return [
        spark.read.format(form).load([escape(file.path) for file in group]).select("*", *_place())
        for group in _by(files, lambda file: _schema_of(file.path, form))
    ]


def by_header(files: Sequence[InputFile]) -> list[tuple[str | None, list[InputFile]]]:
    """CSV files grouped by their header record."""
    return [(group[0].header, group) for group in _by(files, lambda file: file.header or "")]


def read_multiline(spark: SparkSession, files: Sequence[InputFile]) -> DataFrame:
    """CSV records that may span lines as `value`, plus PLACE (one block per file).

    Split here, streaming, into a spool file that lives as long as the Spark session's scratch directory: Spark's own
    multi-line reader gives no raw text and no place.
    """
    spool = Path(tempfile.mkdtemp(prefix="records-", dir=_scratch(spark)))
    schema = pa.schema([("value", pa.string()), ("_file", pa.string()), ("_block", pa.int64()), ("_id", pa.int64())])
    with pq.ParquetWriter(spool / "records.parquet", schema) as out:
        for file in files:
            uri = "file:" + quote(file.path)
            for chunk in _chunks(split_records(_text_of(file)), 10_000):
                numbers, values = zip(*chunk, strict=True)
                size = len(values)
                out.write_table(pa.table([list(values), [uri] * size, [0] * size, list(numbers)], schema=schema))
    return spark.read.parquet(escape(str(spool / "records.parquet")))


def split_records(lines: Iterable[str]) -> Iterator[str]:
    """Physical lines as CSV records: a line end inside double quotes belongs to the record."""
    held: list[str] = []
    quotes = 0
    for line in lines:
        held.append(line)
        quotes += line.count('"')
        if quotes % 2 == 0:
            yield "\n".join(held)
            held, quotes = [], 0
    yield from held  # an unclosed quote: its lines are records of their own, so the loss is bounded


def _text_of(file: InputFile) -> Iterator[str]:
    opener = gzip.open if file.path.endswith(".gz") else open
    with opener(file.path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline=None) as text:
        for line in text:
            yield line.removesuffix("\n").encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _chunks(values: Iterable[str], size: int) -> Iterator[list[tuple[int, str]]]:
    numbered = enumerate(values)
    while chunk := list(islice(numbered, size)):
        yield chunk


def _scratch(spark: SparkSession) -> str:
    return str(spark._jvm.org.apache.spark.SparkFiles.getRootDirectory())  # type: ignore[union-attr]


def union(frames: Iterable[DataFrame]) -> DataFrame:
    """All rows of all frames; columns are matched by name."""
    return reduce(lambda left, right: left.unionByName(right), frames)


def escape(path: str) -> str:
    """A local path as Hadoop takes it literally, whatever glob characters its name holds."""
    return "file://" + _GLOB.sub(r"\\\1", path)


def local_path(uri: str) -> str:
    """The path behind `_file`: the inverse of what Spark's `_metadata.file_path` makes of it."""
    return unquote(re.sub(r"^file:(//)?", "", uri))


def _place() -> list[object]:
    return [
        F.col("_metadata.file_path").alias("_file"),
        F.col("_metadata.file_block_start").alias("_block"),
        F.monotonically_increasing_id().alias("_id"),
    ]


def _by(files: Sequence[InputFile], key: Callable[[InputFile], str]) -> list[list[InputFile]]:
    ordered = sorted(files, key=lambda file: (key(file), file.path))
    return [list(group) for _, group in groupby(ordered, key)]


def _schema_of(path: str, form: str) -> str:
    if form == "parquet":
        return str(pq.read_schema(path).remove_metadata())
    return str(orc.ORCFile(Path(path)).schema)


def offsets(counts: Iterable[tuple[str, int, int, int]]) -> list[tuple[str, int, int]]:
    """What to add to `_id` to get a record's number.

    `counts`: (file, block, rows, smallest id) per block; returns (file, block, offset). Shapes as in PLACE.
    """
    result = []
    for _, blocks in groupby(sorted(counts), key=lambda row: row[0]):
        before = 0
        for file, block, rows, smallest in blocks:
            result.append((file, block, before - smallest + 1))
            before += rows
    return result


def number(frame: DataFrame, found: Sequence[tuple[str, int, int]]) -> DataFrame:
    """Add `file` (local path) and `position` to a frame with PLACE. `found`: what `offsets` returned."""
    spark = frame.sparkSession
    rows = [(uri, block, offset, local_path(uri)) for uri, block, offset in found]
    places = spark.createDataFrame(rows, "_file string, _block long, _offset long, file string")
    joined = frame.join(F.broadcast(places), ["_file", "_block"])
    return joined.withColumn("position", F.col("_id") + F.col("_offset")).drop("_offset")


def select_all(frame: DataFrame, names: Iterable[str]) -> DataFrame:
    """The named columns in that order."""
    return frame.select(*[F.col(quoted(name)) for name in names])
