"""A format that only this test knows: an entry in each registry, and no other line, lets it through
drain and audit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from draindown.audit import raw
from draindown.audit.recount import audit
from draindown.base.exits import Exit
from draindown.config.formats import FORMATS, Format
from draindown.config.landing import FlowSpec
from draindown.config.source import SourceSpec
from draindown.flow import quarantine
from draindown.flow.schema_drift import Known
from draindown.sources.files.formats import INSPECTORS, Lines
from draindown.spark.contract import drift_marks
from draindown.spark.contract.record_frame import NOTHING, Records, finish, of_lines
from draindown.spark.contract.records import READERS
from draindown.spark.runs.replay_rows import replay
from draindown.spark.sources.port import Read
from draindown.spark.sql import literal


class Pairs:
    """`name=value;name=value` in each line."""

    def records(self, read: Read, flow: FlowSpec, known: Known) -> Records:
        frame = of_lines(read.frame, flow).withColumn("_m", F.expr("str_to_map(value, ';', '=')"))
        broken = F.when(~F.col("value").contains("="), F.lit("no pairs"))
        found = finish(frame, broken, F.expr(NOTHING), drift_marks.nothing(), "_m")
        return Records(
            found,
            lambda name: F.expr(f"_m[{literal(name)}]"),
            F.col("_raw"),
            F.octet_length("_raw"),
        )


def _recounted(source: SourceSpec, names: Sequence[str], header: Sequence[str]) -> raw._Reader:
    def fields(record: bytes) -> list[str | None]:
        pairs = dict(pair.split("=") for pair in record.decode().split(";"))
        return [pairs.get(name) for name in names]

    return fields, lambda record: b"=" not in record


@pytest.fixture
def pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FORMATS, "pairs", Format("pairs", nested=False))
    monkeypatch.setitem(INSPECTORS, "pairs", Lines())
    monkeypatch.setitem(READERS, "pairs", Pairs())
    monkeypatch.setitem(raw._FIELDS, "pairs", _recounted)


@pytest.mark.full
@pytest.mark.usefixtures("pairs")
def test_a_format_is_an_entry_in_each_registry(
    landing: Callable[[Mapping[str, Any]], Any], spark: SparkSession
) -> None:
    here = landing(
        {
            "source": {"format": "pairs"},
            "columns": {"id": "string not null", "n": "int not null"},
            "target": {"keys": ["id"], "sequence_by": ["n"]},
        }
    )
    here.deliver("id=a;n=1", "id=b;n=2", "", "no more", "id=c;n=x", "id=a;n=3")
    report, code = here.attempt()
    assert code == Exit.DONE, report.error
    assert {row["id"]: row["n"] for row in here.rows("id, n")} == {"a": 3, "b": 2}
    assert {row["reason"] for row in here.refused().values()} == {"malformed", "type"}

    ids = tuple(quarantine.identified(here.layout, quarantine.Filter()))
    done = replay(here.request("again", quarantine_ids=ids), spark)
    assert done.drain is not None and done.drain.totals["quarantined"] == 2
    assert audit(here.spec, "f", root=here.home).residues == []
