"""A batch looks only into files of the target that can hold its keys: others may as well not be
there.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from draindown.flow import quarantine
from draindown.spark.runs.rebuild import rebuild
from draindown.spark.runs.replay_rows import replay as replay_rows
from draindown.spark.session import configured
from draindown.spark.targets import partitioning
from draindown.spark.tuning import Tuning
from tests.landing import Landing

NUMBERED = {"keys": ["id"], "sequence_by": ["seq"], "apply_as_deletes": "op = 'd'"}
COLUMNS = {"id": "long not null", "seq": "int not null", "op": "string", "a": "int"}


def _line(key: int, seq: int, a: int, op: str = "u") -> str:
    return json.dumps({"id": key, "seq": seq, "op": op, "a": a})


def _files(landing: Landing) -> set[Path]:
    return set(Path(landing.layout.tables.target.path).rglob("*.parquet"))


def _rows(landing: Landing) -> dict[int, int]:
    found = (
        QueryBuilder()
        .register("t", DeltaTable(landing.layout.tables.target.path))
        .execute("select id, a from t")
    )
    return {
        row["id"]: row["a"]
        for row in pa.RecordBatchReader.from_stream(found).read_all().to_pylist()
    }


@pytest.mark.full
def test_files_between_the_ranges_of_a_batch_are_not_read(
    tmp_path: Path, spark: SparkSession
) -> None:
    landing = Landing(tmp_path, columns=COLUMNS, target=NUMBERED)
    made: list[set[Path]] = []
    for start in (0, 1_000, 2_000):
        before = _files(landing)
        landing.deliver(*[_line(start + i, 1, 0) for i in range(20)])
        landing.apply(spark)
        made.append(_files(landing) - before)
    hidden = [(path, path.with_suffix(".hidden")) for path in made[1]]
    assert hidden, "the batch in the middle wrote files of its own"
    for path, aside in hidden:
        path.rename(aside)

    landing.deliver(_line(3, 2, 7), _line(5, 2, 0, "d"))
    landing.deliver(_line(2_004, 2, 8), _line(2_005, 0, 9))
    report = landing.apply(spark)

    for path, aside in hidden:
        aside.rename(path)
    assert report.drain is not None and report.drain.totals["superseded"] == 1
    expected = {start + i: 0 for start in (0, 1_000, 2_000) for i in range(20)} | {3: 7, 2_004: 8}
    del expected[5]
    assert _rows(landing) == expected


@pytest.mark.long
def test_partitions_between_those_of_a_batch_are_not_read_even_if_they_are_too_many_to_name(
    tmp_path: Path, spark: SparkSession
) -> None:
    keyed = NUMBERED | {"keys": ["a", "name"], "partition_by": ["a"]}
    landing = Landing(
        tmp_path, columns=COLUMNS | {"name": "string not null", "a": "int not null"}, target=keyed
    )

    def line(part: int, seq: int) -> str:
        return json.dumps({"id": 1, "seq": seq, "op": "u", "a": part, "name": "n"})

    landing.deliver(*[line(part, 1) for part in range(12)])
    landing.apply(spark)
    for path in _files(landing):
        if path.parent.name in {f"a={part}" for part in range(4, 9)}:
            path.rename(path.with_suffix(".hidden"))
    assert len(_files(landing)) == 7

    for seq, most in ((2, 2), (3, 200)):
        landing.deliver(*[line(part, seq) for part in range(4)])  # each file has ranges of its own
        landing.deliver(*[line(part, seq) for part in (9, 11)])
        landing.apply(spark, tuning=Tuning(named_values=most))

    for path in Path(landing.layout.tables.target.path).rglob("*.hidden"):
        path.rename(path.with_suffix(".parquet"))
    found = (
        QueryBuilder()
        .register("t", DeltaTable(landing.layout.tables.target.path))
        .execute("select a, seq from t")
    )
    held = {
        row["a"]: row["seq"]
        for row in pa.RecordBatchReader.from_stream(found).read_all().to_pylist()
    }
    assert held == {part: 3 if part in (0, 1, 2, 3, 9, 11) else 1 for part in range(12)}


@pytest.mark.long
def test_a_bucket_made_of_the_key_prunes(tmp_path: Path, spark: SparkSession) -> None:
    keyed = {"keys": ["name"], "sequence_by": ["seq"], "partition_by": ["bucket"]}
    landing = Landing(
        tmp_path,
        columns={"name": "string not null", "seq": "int not null"},
        target=keyed,
        transform="own.bucket",
    )
    landing.transform(
        "own",
        "def bucket(df):\n    return df.withColumn('bucket', F.pmod(F.crc32('name'), F.lit(16)))\n",
    )
    names = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(60)]
    landing.deliver(*[json.dumps({"name": name, "seq": 1}) for name in names])
    landing.apply(spark)
    found = (
        QueryBuilder()
        .register("t", DeltaTable(landing.layout.tables.target.path))
        .execute("select name, bucket from t")
    )
    buckets = {
        row["name"]: row["bucket"]
        for row in pa.RecordBatchReader.from_stream(found).read_all().to_pylist()
    }
    own = buckets[names[0]]
    assert len(set(buckets.values())) > 8
    for path in _files(landing):
        if path.parent.name != f"bucket={own}":
            path.rename(path.with_suffix(".hidden"))

    landing.deliver(json.dumps({"name": names[0], "seq": 2}))
    report = landing.apply(spark)
    assert report.drain is not None and report.drain.totals["updated"] == 1


BUCKET = "def bucket(df):\n    return df.withColumn('bucket', F.pmod(F.crc32('name'), F.lit({})))\n"
BUCKETED = {
    "keys": ["name"],
    "sequence_by": ["seq"],
    "apply_as_deletes": "op = 'd'",
    "partition_by": ["bucket"],
}


def bucketed(home: Path, buckets: int) -> Landing:
    columns = {"name": "string not null", "seq": "int not null", "op": "string"}
    landing = Landing(home, columns=columns, target=BUCKETED, transform="own.bucket")
    landing.transform("own", BUCKET.format(buckets))
    return landing


def _places(landing: Landing) -> list[tuple[str, int, int]]:
    found = (
        QueryBuilder()
        .register("t", DeltaTable(landing.layout.tables.target.path))
        .execute("select name, seq, bucket from t")
    )
    rows = pa.RecordBatchReader.from_stream(found).read_all().to_pylist()
    return sorted((row["name"], row["seq"], row["bucket"]) for row in rows)


def _in(name: str, buckets: int) -> int:
    return zlib.crc32(name.encode()) % buckets


@pytest.mark.full
def test_rows_of_another_computation_are_found_wherever_they_are(
    tmp_path: Path, spark: SparkSession
) -> None:
    landing, names = bucketed(tmp_path, 16), [str(number) for number in range(40)]
    moved = [name for name in names if _in(name, 16) != _in(name, 32)]
    stay, gone, again = moved[:3]
    landing.deliver(*[json.dumps({"name": name, "seq": 1}) for name in names])
    landing.apply(spark)
    landing.transform("own", BUCKET.format(32))
    landing.deliver(
        *[json.dumps({"name": name, "seq": 2}) for name in names if name not in (stay, gone)]
    )
    landing.deliver(json.dumps({"name": gone, "seq": 2, "op": "d"}))
    landing.apply(spark)
    expected = {name: (name, 2, _in(name, 32)) for name in names} | {stay: (stay, 1, _in(stay, 16))}
    del expected[gone]
    assert _places(landing) == sorted(expected.values())
    # as it was; rows of in between are not where it looks
    landing.transform("own", BUCKET.format(16))
    landing.deliver(json.dumps({"name": again, "seq": 3}))
    landing.apply(spark)
    assert _places(landing) == sorted((expected | {again: (again, 3, _in(again, 16))}).values())


@pytest.mark.long
def test_a_rebuild_makes_partitions_of_another_computation_prune_again(
    tmp_path: Path, spark: SparkSession
) -> None:
    landing, names = bucketed(tmp_path, 16), [str(number) for number in range(40)]
    landing.deliver(*[json.dumps({"name": name, "seq": 1}) for name in names])
    landing.drain(spark)
    first = landing.layout.tables.target.properties[partitioning.PROPERTY]
    landing.transform("own", BUCKET.format(32))
    rebuild(landing.request("rebuild"), spark, progress=lambda line: None)
    assert _places(landing) == sorted((name, 1, _in(name, 32)) for name in names)
    assert landing.layout.tables.target.properties[partitioning.PROPERTY] != first
    for path in _files(landing):
        if path.parent.name != f"bucket={_in(names[0], 32)}":
            path.rename(path.with_suffix(".hidden"))
    landing.deliver(json.dumps({"name": names[0], "seq": 2}))
    report = landing.drain(spark)
    assert report.drain is not None and report.drain.totals["updated"] == 1


PRUNED = [  # contract, and what its finding advises; None where nothing is to be told
    ({"target": NUMBERED}, None),
    ({"target": NUMBERED | {"keys": ["name"]}}, "add what never changes for a row"),
    (
        {"target": NUMBERED | {"keys": ["name"], "partition_by": ["a"]}},
        "have the transform make a of columns",
    ),
    ({"target": NUMBERED | {"keys": ["name", "a"], "partition_by": ["a"]}}, None),
    (
        {"target": NUMBERED | {"keys": ["name", "a"], "partition_by": ["a"]}},
        "partition by something coarser than a",
    ),
]


@pytest.mark.full
@pytest.mark.parametrize(
    ("contract", "advice", "again"),
    [
        pytest.param(*PRUNED[1], False, id="no order"),
        *(
            pytest.param(*one, True, id=name, marks=pytest.mark.long)
            for one, name in zip(
                PRUNED, ("range", "no order, twice", "untold", "partition", "too many"), strict=True
            )
        ),
    ],
)
def test_a_batch_that_its_keys_do_not_lead_to_its_files_is_told_of(
    tmp_path: Path, spark: SparkSession, contract: dict[str, Any], advice: str | None, again: bool
) -> None:
    tuning = Tuning(many_files=8, large=1000)
    contract = contract | {"maintenance": {"copy_on_write": 0}}  # what is little is made one file
    landing = Landing(
        tmp_path, columns=COLUMNS | {"name": "string not null", "a": "int not null"}, **contract
    )

    def name(key: int) -> str:
        return hashlib.sha256(str(key).encode()).hexdigest()

    def line(key: int, seq: int) -> str:
        return json.dumps({"id": key, "seq": seq, "op": "u", "a": key // 2, "name": name(key)})

    landing.deliver(*[line(key, 1) for key in range(40)])
    with configured(
        spark, {"spark.sql.shuffle.partitions": "10", "spark.sql.adaptive.enabled": "false"}
    ):
        landing.apply(spark)
    files = len(DeltaTable(landing.layout.tables.target.path).file_uris())
    assert files >= 8
    # neighbours where an order tells of them, and the two ends of what has none
    some = (0, 1) if advice is None else (min(range(40), key=name), max(range(40), key=name))
    if advice and "coarser" in advice:
        tuning = replace(tuning, named_values=1)
        some = (0, 39)
    landing.deliver(*[line(key, 2) for key in some])

    findings = landing.apply(spark, tuning=tuning).findings
    if again and (advice is None or "never changes" in advice):
        landing.deliver(*[line(key, 1) for key in some])
        in_vain = landing.apply(spark, tuning=tuning).findings  # nothing at all is changed
        assert [finding.next for finding in in_vain] == [finding.next for finding in findings]
    told = [finding for finding in findings if finding.kind == "pruning-lost"]
    assert len(told) == len(findings) == (advice is not None)
    if advice is not None:
        assert told[0].next.startswith(advice)
        assert "draindown rebuild p/f" in told[0].next
        # where the partitions are a range, that of the names leaves some of its files out
        looked_into = 12 if "coarser" in advice else files
        assert f"in {looked_into} of {files} files and changed rows in" in told[0].detail


def _parquet(landing: Landing, *rows: tuple[bytes, int], name: str) -> None:
    """A file whose keys are text by its schema, whatever their bytes are."""
    texts, ends = b"".join(key for key, _ in rows), [0]
    for key, _ in rows:
        ends.append(ends[-1] + len(key))
    offsets = pa.py_buffer(array("i", ends))
    keys = pa.Array.from_buffers(pa.string(), len(rows), [None, offsets, pa.py_buffer(texts)])
    table = pa.table({"id": keys, "seq": pa.array([seq for _, seq in rows], pa.int32())})
    pq.write_table(table, landing.landing / name)


@pytest.mark.full
@pytest.mark.parametrize("batches", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_key_that_is_not_text_is_refused_as_it_could_not_be_found_again(
    tmp_path: Path, spark: SparkSession, batches: int
) -> None:
    contract: dict[str, Any] = {"columns": {"id": "string not null", "seq": "int not null"}}
    contract |= {
        "target": {"keys": ["id"], "sequence_by": ["seq"]},
        "source": {"format": "parquet"},
    }
    plain = Landing(tmp_path / "plain", **contract)
    made = Landing(tmp_path / "made", **contract, transform="own.tidy")
    made.transform(
        "own", "def tidy(df):\n    return df.withColumn('id', F.unhex('id').cast('string'))\n"
    )
    for seq in range(1, batches + 1):
        _parquet(
            plain, (b"\xff\xfe", seq), (b"a\xff", seq), ("é".encode(), seq), name=f"{seq}.parquet"
        )
        _parquet(made, (b"FFFE", seq), (b"C3A9", seq), name=f"{seq}.parquet")
        plain.drain(spark)
        made.apply(spark)

    for landing, reasons in ((plain, {"malformed": 2}), (made, {"type:id": 1})):
        rows = (
            QueryBuilder()
            .register("t", DeltaTable(landing.layout.tables.target.path))
            .execute("select id, seq from t")
        )
        assert pa.RecordBatchReader.from_stream(rows).read_all().to_pylist() == [
            {"id": "é", "seq": batches}
        ]
        assert [row["reasons"] for row in landing.ledger()] == [json.dumps(reasons)] * batches

    ids = set(quarantine.identified(plain.layout, quarantine.Filter()))
    assert len(ids) == 2 * batches
    # their kept form is no text either
    replay_rows(plain.request("rows", quarantine_ids=sorted(ids)), spark)
    assert set(quarantine.identified(plain.layout, quarantine.Filter())) == ids
    assert {row["applied"] for row in plain.ledger() if row["kind"] == "release"} == {0}


@pytest.mark.campaign
def test_a_file_within_a_range_is_read(tmp_path: Path, spark: SparkSession) -> None:
    landing = Landing(tmp_path, columns=COLUMNS, target=NUMBERED)
    for start in (0, 1_000):
        landing.deliver(*[_line(start + i, 1, 0) for i in range(5)])
        landing.apply(spark)
    for path in _files(landing):
        path.rename(path.with_suffix(".hidden"))
    landing.deliver(_line(2, 2, 7), _line(1_004, 2, 8))  # one file: one range over both

    with pytest.raises(Exception, match=r"does not exist|FILE_NOT_EXIST|FileNotFound"):
        landing.apply(spark)
