"""The reader of files: exactly those that a slice pins, each record with its number in the file,
from 1.

A block is a split of a file. The number of a record is its place within the block plus the records
of the file's earlier blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from pyspark.sql import DataFrame, SparkSession

from draindown.config.landing import FlowSpec
from draindown.sources.slices import Unit
from draindown.spark.frames import NUMBER, TEXT, relation
from draindown.spark.sources.place import Block, Offset
from draindown.spark.sources.port import Read
from draindown.spark.sources.readers import (
    SETTINGS,
    InputFile,
    by_header,
    columnar_groups,
    local_path,
    read_documents,
    read_multiline,
    read_text,
)


class FilesReader:
    """The `SliceReader` of files. PLACE has their URIs, as Spark's `_metadata.file_path` spells
    them.
    """

    settings = SETTINGS

    def read(
        self, spark: SparkSession, flow: FlowSpec, units: Sequence[Unit], spool: str
    ) -> list[Read]:
        """Read lines, one plan per distinct header, or rows, one plan per distinct schema."""
        files, form = [InputFile.of(unit) for unit in units], flow.source.form
        if form.columnar:
            return [
                Read(rows)
                for rows in columnar_groups(
                    spark, files, form.name, flow.as_recorded.columns, spool
                )
            ]
        if not files:
            return [
                Read(
                    relation(
                        spark, {"value": TEXT, "_unit": TEXT, "_block": NUMBER, "_id": NUMBER}, ()
                    )
                )
            ]
        if form.delimited:
            return [
                Read(_cells(spark, flow, group, spool), header)
                for header, group in by_header(files)
            ]
        if flow.source.documents:
            return [Read(read_documents(spark, files, flow.source.max_record_bytes, spool))]
        return [Read(read_text(spark, files))]

    def name(self, unit: str) -> str:
        """Return the local path of a URI."""
        return local_path(unit)

    def offsets(self, blocks: Sequence[Block]) -> list[Offset]:
        """Return offsets that make ids record numbers. Blocks of a file follow each other by where
        they start.
        """
        result = []
        for _, parts in groupby(sorted(blocks), key=lambda row: row[0]):
            before = 0
            for file, block, records, smallest in parts:
                result.append((file, block, before - smallest + 1))
                before += records
        return result

    def failure(self, error: BaseException) -> None:
        """Explain nothing: which file can't be read is found by reading each alone."""


def _cells(
    spark: SparkSession, flow: FlowSpec, files: Sequence[InputFile], spool: str
) -> DataFrame:
    """Return delimited records; files in which quotes hold line ends are split record by record.

    Without quotes no record spans lines, whatever a file was taken in as while cells had some.
    """
    has_quotes = flow.source.dialect.quote is not None
    plain = [file for file in files if not (file.multiline and has_quotes)]
    folded = [file for file in files if file.multiline and has_quotes]
    frames = [read_text(spark, plain)] if plain else []
    if folded:
        frames.append(
            read_multiline(spark, folded, flow.source.dialect, flow.source.max_record_bytes, spool)
        )
    return frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])
