"""Read files with Spark: lines, delimited records that span lines, rows of columnar files. Each
with its place.

Blocks are splits of a file, which a partition reads one after the other.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from itertools import groupby
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from draindown.config.dialect import Dialect
from draindown.sources import objects
from draindown.sources.files import json_documents
from draindown.sources.files.columnar import COLUMNAR
from draindown.sources.files.container import LIMITS
from draindown.sources.slices import Unit
from draindown.spark.frames import NUMBER, TEXT, relation
from draindown.spark.sources.folded import lines_of, split_records
from draindown.spark.sources.nanoseconds import cut, cut_names, in_micros, is_nanoseconds, moments
from draindown.spark.sources.place import CUT
from draindown.spark.sources.spool import new_file
from draindown.spark.sql import bytes_of, hadoop_path, literal, quoted

_NESTED = "spark.sql.parquet.enableNestedColumnVectorizedReader"
SETTINGS = {"spark.sql.legacy.parquet.nanosAsLong": "true", _NESTED: "true"}
"""Session settings of the readers.

`nanosAsLong`: without it, Spark refuses Parquet timestamps in nanoseconds, which pandas writes.
`_NESTED`: restores the default after a batch in which `_respooled` turned it off.
"""
_AT_ONCE, _BYTES_AT_ONCE = 10_000, 32 * 1024**2
"""Records, and their bytes, that the driver holds of a file that it splits."""
_READ = 1024**2


@dataclass(frozen=True)
class InputFile:
    """One file of a batch, as the intake recorded it. `counted`: its lines, or its rows if it is
    columnar.
    """

    path: str
    counted: int
    header: str | None = None
    multiline: bool = False

    @classmethod
    def of(cls, unit: Unit) -> InputFile:
        """Return the file that a unit names."""
        return cls(unit.name, unit.until, unit.row["header"], bool(unit.row["multiline"]))


def read_text(spark: SparkSession, files: Sequence[InputFile]) -> DataFrame:
    """Return the lines as `value` string, plus PLACE.

    Lines end at `\\n`, `\\r\\n` or `\\r`. Blank lines are kept; a BOM is removed.
    """
    lines = spark.read.text([hadoop_path(file.path) for file in files])
    return lines.select("value", *_place(lines))


def columnar_groups(
    spark: SparkSession, files: Sequence[InputFile], form: str, known: Collection[str], spool: str
) -> list[DataFrame]:
    """Return one frame per distinct file schema: `_row`, a struct of the file's own columns,
    `_size`, plus PLACE.

    `_size`: bytes of the row's strings and binaries, without those inside nested values. If the
    file has columns that are not in `known`, a struct `_more` repeats them. Files that Spark can't
    read are copied into the directory `spool`; the frame reads the copy until its batch is done.
    """
    filled = [file for file in files if file.counted]
    groups = _by(filled, lambda file: COLUMNAR[form].shape(file.path))
    return [_rows(spark, group, form, known, spool) for group in groups] or [
        relation(spark, _NO_ROWS, ())
    ]


_NO_ROWS = {
    "_row": pa.struct({"_none": TEXT}),
    "_size": NUMBER,
    "_unit": TEXT,
    "_block": NUMBER,
    "_id": NUMBER,
}


def _rows(
    spark: SparkSession, files: Sequence[InputFile], form: str, known: Collection[str], spool: str
) -> DataFrame:
    first, columnar = files[0].path, COLUMNAR[form]
    if columnar.needs_copy(first):
        return _respooled(spark, files, form, known, spool)
    rows = spark.read.format(form).load([hadoop_path(file.path) for file in files])
    own = {name: F.col(quoted(name)) for name in rows.columns}
    kinds = {field.name: field.type for field in columnar.schema(first)}
    found = {
        field.name: moments(quoted(field.name), kinds[field.name], field.dataType, form)
        for field in rows.schema
    }
    own |= {name: F.expr(text).alias(name) for name, text in found.items() if text}
    cut = [
        name
        for name in rows.columns
        if found[name] and isinstance(rows.schema[name].dataType, LongType)
    ]
    return rows.select(
        F.struct(*own.values()).alias("_row"),
        *_besides(rows.schema, known, own),
        *_cut(cut),
        *_place(rows),
    )


def _cut(nanos: Sequence[str]) -> list[Column]:
    """Return the column CUT, if there are columns of nanoseconds."""
    names = ", ".join(
        f"if(pmod({quoted(name)}, 1000) > 0, {literal(name)}, null)" for name in nanos
    )
    return [F.expr(f"array_compact(array({names}))").alias(CUT)] if nanos else []


def _besides(schema: StructType, known: Collection[str], own: Mapping[str, Column]) -> list[Column]:
    """Return the columns `_size` and, if the schema has columns that are not in `known`,
    `_more`.
    """
    texts = [field.name for field in schema if isinstance(field.dataType, StringType | BinaryType)]
    size = bytes_of([quoted(name) for name in texts])
    more = [own[name] for name in schema.names if name not in known]
    return [F.expr(size).alias("_size"), *([F.struct(*more).alias("_more")] if more else [])]


def _respooled(
    spark: SparkSession, files: Sequence[InputFile], form: str, known: Collection[str], spool: str
) -> DataFrame:
    """Copy the files into a Parquet file with few columns, one block of rows at a time, and return
    its rows.

    All rows of a file get `_block` 0. Of the columns that CUT names, only those in `known` are
    looked at.
    """
    schema = COLUMNAR[form].schema(files[0].path)
    kinds, copy = _copied_kinds(schema, known), new_file(spool)
    with pq.ParquetWriter(copy, kinds) as out:
        for file in files:
            before = 0
            for rows in COLUMNAR[form].blocks(file.path):
                # files of one shape may have other types to pyarrow, which follows what their
                # writer noted
                out.write_table(_copied(rows.cast(schema), kinds, _uri(file), before))
                before += rows.num_rows
    # it allocates 4,096 rows per nested field: thousands of fields fill the heap
    spark.conf.set(_NESTED, "false")
    return spark.read.parquet(hadoop_path(str(copy)))


def _copied_kinds(schema: pa.Schema, known: Collection[str]) -> pa.Schema:
    """Return the columns of a copy, each with its type."""
    row = [field.with_type(in_micros(field.type)) for field in schema]
    more = [field for field in row if field.name not in known]
    kinds = [("_row", pa.struct(row)), ("_size", pa.int64()), ("_unit", pa.string())]
    kinds += [
        ("_block", pa.int64()),
        ("_id", pa.int64()),
        *([("_more", pa.struct(more))] if more else []),
    ]
    is_cut = any(is_nanoseconds(field.type) for field in schema if field.name in known)
    return pa.schema([*kinds, *([(CUT, pa.list_(pa.string()))] if is_cut else [])])


def _copied(found: pa.RecordBatch, kinds: pa.Schema, unit: str, before: int) -> pa.Table:
    """Return what a copy holds of some rows of a unit. `before`: the number of rows before
    these.
    """
    rows = pa.RecordBatch.from_arrays(
        [cut(one) for one in found.columns], schema=pa.schema(kinds.field("_row").type)
    )
    more = [field.name for field in kinds.field("_more").type] if "_more" in kinds.names else []
    held = {
        "_row": rows.to_struct_array(),
        "_size": _sizes(rows),
        "_unit": [unit] * rows.num_rows,
        "_block": [0] * rows.num_rows,
        "_id": range(before, before + rows.num_rows),
        "_more": rows.select(more).to_struct_array(),
    }
    if CUT in kinds.names:
        held[CUT] = cut_names(found, [name for name in found.schema.names if name not in more])
    return pa.table({name: held[name] for name in kinds.names}, schema=kinds)


def _sizes(rows: pa.RecordBatch) -> pa.Array:
    """Return the bytes of each row's strings and binaries."""
    texts = [c for c in rows.columns if pa.types.is_string(c.type) or pa.types.is_binary(c.type)]
    sizes = pa.array([0] * rows.num_rows, pa.int64())
    for column in texts:
        sizes = pc.add(sizes, pc.fill_null(pc.binary_length(column), 0).cast(pa.int64()))
    return sizes


def by_header(files: Sequence[InputFile]) -> list[tuple[str | None, list[InputFile]]]:
    """Return CSV files grouped by header record."""
    return [(group[0].header, group) for group in _by(files, lambda file: file.header or "")]


def read_multiline(
    spark: SparkSession, files: Sequence[InputFile], dialect: Dialect, limit: int, spool: str
) -> DataFrame:
    """Return CSV records that may span lines as `value`, plus PLACE (one block per file).

    The driver splits the records, streaming, into a file in the directory `spool`, because Spark's
    own multi-line reader returns neither raw text nor places. The frame reads that file until its
    batch is done.
    """

    def records(file: InputFile) -> Iterator[bytes]:
        return (
            record.encode("latin-1")
            for record in split_records(lines_of(file.path), dialect, limit)
        )

    return _spooled(spark, files, records, spool)


def read_documents(
    spark: SparkSession, files: Sequence[InputFile], limit: int, spool: str
) -> DataFrame:
    """Return the records of JSON documents as `value`, plus PLACE (one block per file).

    The driver splits them into a file, as `read_multiline` does: Spark's own reader holds a whole
    document as one row.
    """

    def records(file: InputFile) -> Iterator[bytes]:
        with _opened(file) as data:
            yield from json_documents.records(
                iter(partial(data.read, _READ), b""), max(limit, LIMITS.line)
            )

    return _spooled(spark, files, records, spool)


def _spooled(
    spark: SparkSession,
    files: Sequence[InputFile],
    records: Callable[[InputFile], Iterator[bytes]],
    spool: str,
) -> DataFrame:
    copy = new_file(spool)
    schema = pa.schema(
        [
            ("value", pa.binary()),
            ("_unit", pa.string()),
            ("_block", pa.int64()),
            ("_id", pa.int64()),
        ]
    )
    with pq.ParquetWriter(copy, schema) as out:
        for file in files:
            for chunk in _chunks(records(file)):
                numbers, values = zip(*chunk, strict=True)
                held = [values, [_uri(file)] * len(values), [0] * len(values), numbers]
                out.write_table(pa.table([list(column) for column in held], schema=schema))
    spooled = spark.read.parquet(hadoop_path(str(copy)))
    return spooled.withColumn("value", F.col("value").cast("string"))


@contextmanager
def _opened(file: InputFile) -> Iterator[BufferedReader | gzip.GzipFile]:
    with objects.opened(file.path) as stored:
        if file.path.endswith(".gz"):
            with gzip.open(stored) as unpacked:
                yield unpacked
        else:
            yield stored


def _chunks(values: Iterable[bytes]) -> Iterator[list[tuple[int, bytes]]]:
    """Yield numbered records, so many at once that they fit into memory."""
    chunk, size = list[tuple[int, bytes]](), 0
    for number, value in enumerate(values):
        chunk.append((number, value))
        size += len(value)
        if len(chunk) >= _AT_ONCE or size >= _BYTES_AT_ONCE:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _uri(file: InputFile) -> str:
    return "file:" + quote(file.path)


def local_path(uri: str) -> str:
    """Return the local path of a file URI, as Spark's `_metadata.file_path` encodes it."""
    return unquote(re.sub(r"^file:(//)?", "", uri))


def _place(frame: DataFrame) -> list[Column]:
    at = frame.metadataColumn("_metadata")  # not by name: a file may have a column of that name
    return [
        at["file_path"].alias("_unit"),
        at["file_block_start"].alias("_block"),
        F.monotonically_increasing_id().alias("_id"),
    ]


def _by(files: Sequence[InputFile], key: Callable[[InputFile], str]) -> list[list[InputFile]]:
    ordered = sorted(files, key=lambda file: (key(file), file.path))
    return [list(group) for _, group in groupby(ordered, key)]
