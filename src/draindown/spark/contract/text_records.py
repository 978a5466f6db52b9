"""Records of text files: each line is the value of the one column."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from draindown.flow.schema_drift import Known
from draindown.spark.contract import drift_marks
from draindown.spark.contract.record_frame import NOTHING, Records, finish, of_lines
from draindown.spark.sources.readers import InputFile, read_text
from draindown.spec.models import FlowSpec


class TextRecords:
    """The reader of plain text."""

    def read(
        self,
        spark: SparkSession,
        flow: FlowSpec,
        files: Sequence[InputFile],
        spool: str,  # noqa: ARG002
        known: Known,
    ) -> list[Records]:
        """All files by one plan."""
        return [self.from_lines(read_text(spark, files), flow, None, known)]

    def from_lines(self, lines: DataFrame, flow: FlowSpec, header: str | None, known: Known) -> Records:  # noqa: ARG002
        """Lines as they are."""
        nothing, raw = F.expr(NOTHING), F.col("_raw")
        frame = finish(of_lines(lines, flow), nothing, nothing, drift_marks.nothing())
        return Records(frame, lambda _: raw, raw, F.octet_length(raw))
