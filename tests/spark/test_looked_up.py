"""A lookup over real tables, as batches: what was not found is counted, and a row that touches very
many is named.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from draindown.lake.table import Table
from draindown.ledger.rows import BatchRow
from draindown.spark.derived import notes
from draindown.spark.derived.batch import TableSlice, Versions
from tests.derivation import Derivation

NAMES = {
    "source": {"files": "names/*", "format": "json"},
    "columns": {"code": "string not null", "seq": "int not null", "name": "string"},
    "target": {"keys": ["code"], "sequence_by": ["seq"]},
}


def test_rows_that_find_nothing_are_told_and_a_row_that_comes_finds_its_way_to_them(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = Derivation(
        tmp_path,
        spark,
        beside={"names": NAMES},
        lookup={"table": "names", "on": {"k": "code"}, "columns": ["name"]},
    )
    names = it.spec.layout("names").tables.target.path
    fed = "tblproperties ('delta.enableChangeDataFeed' = 'true')"
    spark.sql(f"create table delta.`{names}` (code string, seq int, name string) using delta {fed}")
    spark.sql(f"insert into delta.`{names}` values ('z', 1, 'last')")
    it.insert(
        *((number, 1, k, None, 1, 0.5, "") for number, k in enumerate(("a", "a", "a", "z", None)))
    )
    filled = it.attempt(
        TableSlice(1, [Versions(it.path, None, it.version), Versions(names, None, 1)]), 0
    )
    assert (filled.records, filled.inserted) == (6, 5) and _found(it) == [
        None,
        None,
        None,
        "last",
        None,
    ]
    (told,) = it.notes
    assert (told.kind, told.subject) == ("lookup-missed", "4 rows")
    assert told.detail.startswith("of 5 rows recomputed, which have no row in table names")

    monkeypatch.setattr(notes, "MANY", 3)
    monkeypatch.setattr(notes, "TIMES", 3)
    spark.sql(f"insert into delta.`{names}` values ('a', 1, 'first'), ('b', 1, 'second')")
    changes = [Versions(it.path, it.version, it.version), Versions(names, 1, 2)]
    row = it.attempt(TableSlice(2, changes), 1)
    assert (row.used, row.recomputed, row.updated) == (2, 3, 3) and len(it.notes) == 1, (
        "not three for each"
    )
    assert _found(it) == ["first", "first", "first", "last", None]
    spark.sql(f"delete from delta.`{names}` where code = 'a'")
    row = it.attempt(
        TableSlice(3, [Versions(it.path, it.version, it.version), Versions(names, 2, 3)]), 2
    )
    assert (row.recomputed, row.updated) == (3, 3) and _found(it) == [
        None,
        None,
        None,
        "last",
        None,
    ]
    _, amplified, missed = it.notes
    assert (amplified.kind, missed.kind, missed.subject) == (
        "lookup-amplified",
        "lookup-missed",
        "3 rows",
    )
    assert amplified.subject == "1 changed row" and "k a of table names alone 3" in amplified.detail


PAST = {
    "source": {"files": "past/*", "format": "json"},
    "columns": {"code": "string not null", "since": "timestamp not null", "name": "string"},
    "target": {"keys": ["code"], "sequence_by": ["since"], "stored_as_scd_type": 2},
}


@pytest.mark.full
def test_a_batch_reads_no_file_of_a_history_whose_rows_ended_before_its_times(
    spark: SparkSession, tmp_path: Path
) -> None:
    it = Derivation(
        tmp_path,
        spark,
        beside={"past": PAST},
        lookup={"table": "past", "on": {"k": "code"}, "columns": ["name"], "as_of": "at"},
    )
    past = it.spec.layout("past").tables.target.path
    told = "code string, __START_AT timestamp, __END_AT timestamp, since timestamp, name string"
    spark.sql(
        f"create table delta.`{past}` ({told}) using delta tblproperties ('delta.enableChangeDataFeed' = 'true')"
    )
    for row, number in (
        ("timestamp'2026-01-01 00:00:00Z', timestamp'2026-02-01 00:00:00Z', null, 'old'", 40),
        ("timestamp'2026-02-01 00:00:00Z', null, null, 'new'", 3),
    ):
        spark.sql(
            f"insert into delta.`{past}` select /*+ coalesce(1) */ concat('z', id), {row} from range({number})"
        )
    known = Table(past).version

    def asked(number: int, k: str, at: datetime) -> BatchRow:
        since = it.version
        it.insert((number, 1, k, at, 1, 0.5, ""))
        fills = number == 1
        versions = [Versions(it.path, None if fills else since, it.version)]
        versions += [Versions(past, None if fills else known, known, rows=None if fills else 0)]
        return it.attempt(TableSlice(number, versions), number - 1)

    assert asked(1, "z1", datetime(2026, 3, 1, tzinfo=UTC)).reread == 1 + 43, "a fill reads all"
    assert asked(2, "z2", datetime(2026, 2, 2, tzinfo=UTC)).reread <= 2 + 3, (
        "what ended before is left out"
    )
    assert asked(3, "z39", datetime(2026, 1, 31, tzinfo=UTC)).reread >= 43, (
        "what ended later is not"
    )
    rows = it.layout.tables.target.rows("select name from t order by id")
    assert [row["name"] for row in rows] == ["new", "new", "old"]


def _found(it: Derivation) -> list[str | None]:
    rows = it.layout.tables.target.rows("select name, names_found from t order by id")
    assert all((row["name"] is not None) == row["names_found"] for row in rows)
    return [row["name"] for row in rows]
