"""The reader of each format, and the records of a batch's files or of raw texts that the quarantine kept."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence

from pyspark.sql import DataFrame, SparkSession

from draindown.flow.schema_drift import Known
from draindown.spark.contract.columnar_records import ColumnarRecords
from draindown.spark.contract.csv_records import CsvRecords
from draindown.spark.contract.json_records import JsonRecords
from draindown.spark.contract.record_frame import RecordReader, Records
from draindown.spark.contract.text_records import TextRecords
from draindown.spark.sources.readers import InputFile
from draindown.spec.models import FlowSpec

READERS: MutableMapping[str, RecordReader] = {
    "json": JsonRecords(),
    "csv": CsvRecords(),
    "text": TextRecords(),
    "parquet": ColumnarRecords(),
    "orc": ColumnarRecords(),
}
_NOTHING_KNOWN = Known()


def read(
    spark: SparkSession, flow: FlowSpec, files: Sequence[InputFile], spool: str, known: Known = _NOTHING_KNOWN
) -> list[Records]:
    """The records of the batch's files. Arguments as in `RecordReader.read`."""
    return READERS[flow.source.format].read(spark, flow, files, spool, known)


def from_lines(lines: DataFrame, flow: FlowSpec, header: str | None = None, known: Known = _NOTHING_KNOWN) -> Records:
    """The records of raw texts. Arguments as in `RecordReader.from_lines`."""
    return READERS[flow.source.format].from_lines(lines, flow, header, known)
