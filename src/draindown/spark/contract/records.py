"""The reader of each format: from what a slice reader read, or the quarantine kept, to records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import replace

from draindown.config.landing import FlowSpec
from draindown.flow.schema_drift import Known
from draindown.spark.contract.columnar_records import ColumnarRecords
from draindown.spark.contract.csv_records import CsvRecords
from draindown.spark.contract.envelope import enveloped
from draindown.spark.contract.json_records import JsonRecords
from draindown.spark.contract.record_frame import RecordReader, Records
from draindown.spark.contract.text_records import TextRecords
from draindown.spark.sources.place import ENVELOPE
from draindown.spark.sources.port import Read

READERS: MutableMapping[str, RecordReader] = {
    "json": JsonRecords(),
    "csv": CsvRecords(),
    "text": TextRecords(),
    "parquet": ColumnarRecords(),
    "orc": ColumnarRecords(),
}
_NOTHING_KNOWN = Known()


def records_of(
    reads: Iterable[Read], flow: FlowSpec, known: Known = _NOTHING_KNOWN
) -> list[Records]:
    """Return the records of what was read, one entry per plan. Arguments as in
    `RecordReader.records`.
    """
    recorded = flow.as_recorded
    found = (READERS[flow.source.format].records(read, recorded, known) for read in reads)
    if any(name != field for name, field in flow.fields.items()):
        found = (_by_column(records, flow.fields) for records in found)
    return [
        enveloped(records, flow, known) if ENVELOPE in records.frame.columns else records
        for records in found
    ]


def _by_column(records: Records, fields: Mapping[str, str]) -> Records:
    """Return records whose cells are named by column, and not by the field that holds it."""
    is_text = records.is_text
    named = None if is_text is None else lambda name: is_text(fields[name])
    plain = {name: records.plain[field] for name, field in fields.items() if field in records.plain}
    return replace(
        records, cell=lambda name: records.cell(fields[name]), is_text=named, plain=plain
    )
