"""Records of text: each line is the value of the one column."""

from __future__ import annotations

from pyspark.sql import functions as F

from draindown.config.landing import FlowSpec
from draindown.flow.schema_drift import Known
from draindown.spark.contract import drift_marks
from draindown.spark.contract.record_frame import NOTHING, Records, finish, of_lines
from draindown.spark.sources.port import Read


class TextRecords:
    """The reader of plain text."""

    def records(self, read: Read, flow: FlowSpec, known: Known) -> Records:  # noqa: ARG002
        """Return lines as they are."""
        nothing, raw = F.expr(NOTHING), F.col("_raw")
        frame = finish(of_lines(read.frame, flow), nothing, nothing, drift_marks.nothing())
        return Records(frame, lambda _: raw, raw, F.octet_length(raw))
