"""What the contract doesn't name and what files lack, by policy: told once, made columns in any
order, or refused.
"""

from __future__ import annotations

import csv
import io
import json
import os
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from draindown.audit.recount import audit
from draindown.base.clock import now
from draindown.base.exits import Exit
from draindown.base.findings import Finding
from draindown.config.formats import FORMATS
from draindown.config.landing import FlowSpec
from draindown.flow import discards, quarantine, schema_drift
from draindown.runs.report import StepReport
from draindown.runs.request import Again, Request
from draindown.sources.registry import source_of
from draindown.spark.contract import drift_marks, envelope
from draindown.spark.contract.parsing import parse
from draindown.spark.contract.record_frame import Records
from draindown.spark.contract.records import records_of
from draindown.spark.runs.replay_input import replay as read_again
from draindown.spark.runs.replay_rows import replay as replay_rows
from draindown.spark.sources.port import Read
from draindown.spark.sql import STAMPS
from tests.landing import Injected

Make = Callable[[Mapping[str, Any]], Any]
Record = Mapping[str, Any]
COLUMNS = {"id": "string not null", "seq": "int not null", "op": "string", "a": "string"}
FIRST = {"json": 1, "csv": 2, "parquet": 1}
"""Number of a file's first record: in CSV the header is a record too."""
KEYED = {"keys": ["id"], "sequence_by": ["seq"], "apply_as_deletes": "op = 'd'"}


def flow(form: str = "json", **more: Any) -> dict[str, Any]:
    source = {"format": form, **more.pop("source", {})}
    return {"source": source, "columns": COLUMNS, "target": KEYED, **more}


def encoded(form: str, records: Sequence[Record]) -> bytes:
    """A file of these records; in CSV and Parquet all have the columns of the first."""
    if form == "json":
        return b"".join(json.dumps(record).encode() + b"\n" for record in records)
    out = io.BytesIO()
    if form == "csv":
        text = io.TextIOWrapper(out, newline="", write_through=True)
        writer = csv.DictWriter(text, list(records[0]))
        writer.writeheader()
        writer.writerows(records)
        return out.getvalue()
    pq.write_table(pa.Table.from_pylist(list(records)), out)
    return out.getvalue()


def row(key: str, seq: int, **more: Any) -> dict[str, Any]:
    return {"id": key, "seq": seq, "op": "u", "a": "x", **more}


def respecified(here: Any, **changed: Any) -> None:
    """The pipeline file as its owner changes it."""
    document = here.spec.model_dump(mode="json")
    document["flows"]["f"] |= changed
    here.spec = type(here.spec).model_validate(document)


def told(report: StepReport, *kinds: str) -> list[Finding]:
    return [finding for finding in report.findings if finding.kind in kinds]


def die_at(attempt: Callable[..., tuple[StepReport, Exit]], step: str) -> None:
    """Attempt until the first batch reaches that step, where it dies."""
    fired = []

    def reached(at: str) -> None:
        if at == step:
            fired.append(at)
            raise Injected(step)

    assert attempt(reached=reached)[1] == Exit.CRASH
    assert fired == [step]


def replay(here: Any, since: str, until: str) -> None:
    asked = Again.model_validate({"since": since, "until": until})
    request = Request(
        spec=here.spec, flow="f", step="drain", run_id="again", root=str(here.home), replay=asked
    )
    assert read_again(request, here.spark, progress=lambda line: None).outcome == "done"


@pytest.mark.full
@pytest.mark.parametrize(
    ("form", "failing"),
    [
        ("json", "merged"),
        *(
            pytest.param(*one, marks=pytest.mark.long)
            for one in (("json", "quarantined"), ("csv", "merged"))
        ),
        pytest.param("parquet", "merged", marks=pytest.mark.long),
    ],
)
def test_a_new_field_is_told_once_with_its_first_file_also_when_its_batch_is_tried_again(
    landing: Make, form: str, failing: str
) -> None:
    here = landing(flow(form))
    here.land("1", encoded(form, [row("k1", 1), row("k2", 1)]))
    gate = here.land("2", encoded(form, [row("k3", 1, gate=7), row("k4", 1, gate=12)]))
    lacking = here.land("3", encoded(form, [{"id": "k5", "seq": 1, "op": "u", "b": "1.5"}]))
    die_at(here.attempt, failing)
    report, code = here.attempt()
    assert code == Exit.DONE, report.error
    assert [one["name"] for one in map(vars, schema_drift.seen(here.layout))] == ["a", "gate", "b"]
    new = {finding.subject: finding for finding in told(report, "new-field")}
    assert set(new) == {"gate", "b"}
    at = FIRST[form]
    assert f"2 records, like int; first in {gate}:{at}" in new["gate"].detail
    assert (
        f"1 record, like double; renamed? a is gone there; first in {lacking}:{at}"
        in new["b"].detail
    )
    assert "add 'gate: int' to columns" in new["gate"].next
    (missing,) = told(report, "missing-column")
    assert missing.subject == "a" and str(lacking) in missing.detail
    here.land("4", encoded(form, [{"id": "k6", "seq": 1, "op": "u", "gate": 1, "b": "2"}]))
    report, code = here.attempt()
    assert (code, report.findings) == (Exit.DONE, [])
    assert len(schema_drift.seen(here.layout)) == 3
    rescued = {r["id"]: json.loads(r["_rescued_data"] or "{}") for r in here.rows()}
    assert {key: {n: str(v) for n, v in held.items()} for key, held in rescued.items()} == {
        "k1": {},
        "k2": {},
        "k3": {"gate": "7"},
        "k4": {"gate": "12"},
        "k5": {"b": "1.5"},
        "k6": {"gate": "1", "b": "2"},
    }
    if form != "json":
        return
    # what the finding advises fills the older rows
    respecified(here, columns={**COLUMNS, "gate": "int"})
    asked = re.search(r"--from (\S+) --to (\S+)", new["gate"].next)
    assert asked
    replay(here, asked[1], asked[2])
    held = {
        r["id"]: (r["gate"], r["_rescued_data"] and set(json.loads(r["_rescued_data"])))
        for r in here.rows()
    }
    assert held["k3"] == (7, None) and held["k4"] == (12, None) and held["k6"] == (1, {"b"})


@pytest.mark.full
@pytest.mark.parametrize(
    ("form", "way"),
    [
        ("json", "discard"),
        *(
            pytest.param(*one, marks=pytest.mark.long)
            for one in (("csv", "policy"), ("parquet", "columns"))
        ),
    ],
)
def test_refused_drift_writes_nothing_and_each_way_out_works_on_the_same_cut(
    landing: Make, form: str, way: str
) -> None:
    here = landing(flow(form, drift={"new_columns": "fail", "missing_columns": "fail"}))
    here.land("1", encoded(form, [row("k1", 1), row("k2", 1)]))
    bad = here.land("2", encoded(form, [row("k3", 1, gate=7), row("x", 1, gate=8) | {"seq": None}]))
    gone = here.land("3", encoded(form, [{"id": "k4", "seq": 1, "op": "u"}]))
    here.land("4", encoded(form, [row("k5", 1), {"id": "k1", "seq": 1, "op": "d", "a": None}]))
    report, code = here.attempt_batches()
    assert (code, report.error["code"]) == (Exit.NEEDS_PERSON, "drift-failed")
    assert f"field `gate` is new: 2 records, first in {bad}" in report.error["found"]
    assert f"column `a` is in no record of {gone}" in report.error["found"]
    assert f"draindown input discard p/f --file {bad} --file {gone}" in report.error["next"][-1]
    assert not here.layout.tables.target.exists and not here.layout.tables.quarantine.exists
    assert not schema_drift.seen(here.layout)
    if way == "discard":
        discards.discard_input(
            source_of(here.request()),
            here.layout,
            [str(bad), str(gone)],
            by="me",
            note="",
            at=now(),
        )
    elif way == "policy":
        respecified(here, drift={"new_columns": "rescue", "missing_columns": "allow"})
    else:
        respecified(here, columns=COLUMNS | {"gate": "int"}, drift={"new_columns": "fail"})
    report, code = here.attempt_batches()
    assert code == Exit.DONE, report.error
    refused = 0 if way == "discard" else 1
    assert {r["id"] for r in here.rows()} == {"k2", "k5"} | ({"k3", "k4"} if refused else set())
    assert len(here.refused()) == refused
    if way == "columns":
        assert {r["gate"] for r in here.rows("gate", where="id = 'k3'")} == {7}
    elif way == "policy":
        assert json.loads(here.rows("_rescued_data", where="id = 'k3'")[0]["_rescued_data"]) == {
            "gate": "7"
        }


def test_a_record_without_a_value_lacks_every_column_where_it_deletes(spark: SparkSession) -> None:
    """Else no column of a topic's partition could be missing as soon as it has such a record."""
    found = spark.createDataFrame(
        [("{}", ["-a"]), (None, None)], "_raw string, _drift array<string>"
    )
    frame = found.withColumn("_broken", F.lit(None).cast("string"))
    records = Records(frame, cell=F.col, raw=F.col("_raw"), size=F.lit(0))
    key, at = (
        {"type": "string not null", "from": "key"},
        {"type": "timestamp not null", "from": "timestamp"},
    )
    source = {"kafka": {"topics": ["t"], "bootstrap_servers": "b:1"}, "format": "json"}
    target = {"keys": ["id"], "sequence_by": ["at"]}
    declared = FlowSpec.model_validate(
        {"source": source, "columns": {"id": key, "at": at, "a": "int"}, "target": target}
    )
    assert declared.deletes_by_null
    for refuses, marks in ((True, ["-a"]), (False, None)):
        known = schema_drift.Known(all_records=refuses)
        rows = envelope.enveloped(records, declared, known).frame.select("_raw", "_drift").collect()
        assert {row["_raw"]: row["_drift"] for row in rows} == {"{}": ["-a"], None: marks}


@pytest.mark.full
@pytest.mark.parametrize("new", ["fail", pytest.param("rescue", marks=pytest.mark.long)])
def test_a_header_that_can_t_be_used_names_no_fields(landing: Make, new: str) -> None:
    """The first line of a csv without a header is data: a finding would show it as names of fields
    that were kept.
    """
    here = landing(flow("csv", drift={"new_columns": new}))
    here.land("1", b"k1,1,u,Jane Doe\n")
    here.land("2", b"id,seq,op,more,more\nk2,1,u,x,y\n")
    report, code = here.attempt_batches()
    assert (code, told(report, "new-field", "missing-column")) == (Exit.DONE, []), report.error
    assert {row["reason"] for row in here.refused().values()} == {"malformed"}
    assert schema_drift.seen(here.layout) == []


@pytest.mark.parametrize("new", ["add", "rescue"])
def test_a_decimal_that_becomes_a_column_keeps_its_digits(spark: SparkSession, new: str) -> None:
    declared = FlowSpec.model_validate(
        {
            "source": {"files": "x", "format": "parquet"},
            "columns": {"id": "int"},
            "drift": {"new_columns": new},
        }
    )
    values = {
        "wide": (
            "cast('123456789012345678.12' as decimal(38,10))",
            "123456789012345678.1200000000",
        ),
        "price": ("12345678.00BD", "12345678.00"),
        "box": ("named_struct('at', array(1.10BD))", '{"at":[1.10]}'),
        "rate": ("cast(0.1 as float)", "0.1"),
        "many": ("9007199254740993L", "9007199254740993"),
        "day": ("date'2026-07-01'", "2026-07-01"),
    }
    more = ", ".join(f"'{name}', {value}" for name, (value, _) in values.items())
    rows = spark.sql(
        f"select named_struct('id', 1, {more}) as _row, named_struct({more}) as _more, "
        "0L as _size, 'file:/x' as _unit, 0L as _block, 0L as _id"
    )
    good = parse(spark, declared, records_of([Read(rows)], declared), now())
    if new == "rescue":
        (kept,) = good.select("_rescued_data").collect()
        assert '"price":12345678.00,"box":{"at":[1.10]},"rate":0.1,' in kept["_rescued_data"]
        return
    (added,) = drift_marks.spread(good, list(values), ()).select("_rescued_data", *values).collect()
    assert added.asDict() == {
        "_rescued_data": None,
        **{name: text for name, (_, text) in values.items()},
    }


@pytest.mark.long
def test_a_row_of_a_file_that_has_the_column_is_released_under_missing_refuse(
    landing: Make,
) -> None:
    here = landing(
        flow("json", drift={"missing_columns": "fail"}, rules={"sane": "a is null or a <> 'bad'"})
    )
    here.land("1", encoded("json", [row("k1", 1), {"id": "k2", "seq": 1, "a": "bad"}]))
    assert here.attempt()[1] == Exit.DONE
    assert len(here.refused()) == 1
    respecified(here, rules={})
    ids = tuple(quarantine.identified(here.layout, quarantine.Filter()))
    replay_rows(here.request("rows", quarantine_ids=ids), here.spark)
    assert {r["id"] for r in here.rows()} == {"k1", "k2"}


def _folded(records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """The table that `drift: {new_columns: add}` makes of these records: contract, then added by name, then
    `_rescued_data`.
    """
    reserved = {*COLUMNS, "arrived_at"}
    split = []
    for record in records:
        taken: dict[str, str] = {}
        for name in sorted(record.keys() - COLUMNS.keys()):
            plain = (
                re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,126}", name) and name.lower() not in reserved
            )
            if (
                plain
                and record[name] is not None
                and name.lower() not in (t.lower() for t in taken)
            ):
                taken[name] = record[name]
        if len(record.keys() - COLUMNS.keys()) > schema_drift.MOST_ADDED:
            taken = {}
        left = {
            name: value
            for name, value in record.items()
            if name not in COLUMNS and name not in taken
        }
        split.append((record, {name.lower(): value for name, value in taken.items()}, left))
    names = sorted({name for record, taken, _ in split for name in taken})
    newest: dict[str, tuple[Any, dict[str, Any], bool]] = {}
    for record, taken, left in split:
        content = {"op": record.get("op"), "a": record.get("a")} | {
            name: taken.get(name) for name in names
        }
        content["_rescued_data"] = (
            json.dumps(left, separators=(",", ":"), ensure_ascii=False) if left else None
        )
        delete = record.get("op") == "d"
        rank = (
            record["seq"],
            delete,
            () if delete else tuple((v is not None, v) for v in content.values()),
        )
        if record["id"] not in newest or rank > newest[record["id"]][0]:
            newest[record["id"]] = (rank, content, delete)
    return {key: content for key, (_, content, delete) in newest.items() if not delete}


def _delivered(chance: random.Random) -> list[list[dict[str, Any]]]:
    """Files of records with few keys and sequences, so that many tie, and fields that come and
    go.
    """
    odd = ["new", "New", "other", "user-id", "_own", "ID", "arrived_at", "größe", "a b", "zz"]
    files = []
    for _ in range(4):
        records = []
        for _ in range(8):
            more = {
                name: chance.choice(["1", "2", None])
                for name in chance.sample(odd, chance.randint(0, 3))
            }
            record = row(
                chance.choice("pqrst"), chance.randint(1, 2), a=chance.choice(["x", "y"]), **more
            )
            records.append(record | {"op": chance.choice("uuud")})
        files.append(records)
    files[0].append(row("flood", 1, **{f"f{i}": "1" for i in range(schema_drift.MOST_ADDED + 1)}))
    return files


@pytest.mark.full
@pytest.mark.parametrize(
    ("per_batch", "order"),
    [(4, [2, 3, 1, 0]), pytest.param(1, [0, 1, 2, 3], marks=pytest.mark.long)],
)
def test_added_columns_hold_the_same_whatever_came_first(
    landing: Make, per_batch: int, order: list[int]
) -> None:
    chance = random.Random(22)
    files = _delivered(chance)
    expected = _folded([record for file in files for record in file])
    here = landing(flow(drift={"new_columns": "add"}, source={"max_files_per_trigger": per_batch}))
    for at, number in enumerate(order):
        path = here.land(f"{at}", encoded("json", files[number]))
        os.utime(path, (at, at))
    if per_batch == 4:
        die_at(here.attempt_batches, "remembered")
    report, code = here.attempt_batches()
    assert code == Exit.DONE, report.error
    found = {}
    for held in here.rows():
        content = {
            name.lower(): value
            for name, value in held.items()
            if name not in ("id", "seq", *STAMPS)
        }
        found[held["id"]] = content
    assert {key: json.loads(c["_rescued_data"] or "{}") for key, c in found.items()} == {
        key: json.loads(c["_rescued_data"] or "{}") for key, c in expected.items()
    }
    plain = [
        {key: {**content, "_rescued_data": None} for key, content in side.items()}
        for side in (found, expected)
    ]
    assert plain[0] == plain[1], order
    here.sums()
    assert audit(here.spec, "f", root=here.home).clean


@pytest.mark.full
@pytest.mark.parametrize("form", ["csv", pytest.param("parquet", marks=pytest.mark.long)])
def test_columns_of_files_are_added_as_text_all_at_once(landing: Make, form: str) -> None:
    here = landing(flow(form, drift={"new_columns": "add"}, source={"max_files_per_trigger": 1}))
    here.land("1", encoded(form, [row("k1", 1)]))
    path = here.land(
        "2", encoded(form, [row("k2", 1, gate=7, tail="N1", _own="o"), row("k3", 1, gate=8)])
    )
    report, code = here.attempt_batches()
    assert code == Exit.DONE, report.error
    done = [commit.operation for commit in here.layout.tables.target.commits(2)]
    assert done == ["MERGE", "ADD COLUMNS"], "all in one step"
    assert {finding.subject for finding in told(report, "new-column")} == {"gate", "tail"}
    assert all(
        f"first in {path}:{FIRST[form]}" in finding.detail for finding in told(report, "new-column")
    )
    held = {r["id"]: (r["gate"], r["tail"], r["_rescued_data"]) for r in here.rows()}
    assert held == {
        "k1": (None, None, None),
        "k2": ("7", "N1", '{"_own":"o"}'),
        "k3": ("8", None, None),
    }


BOMB = row("bomb", 1, **{f"f{i}": i for i in range(10_000)})
SPREAD = [row(f"k{i}", 1, **{f"g{i}": "1"}) for i in range(schema_drift.MOST_ADDED + 1)]


@pytest.mark.long
def test_ten_thousand_fields_are_told_in_a_few_lines(landing: Make) -> None:
    here = landing(flow())
    wide = [
        row("w", 1, **{f"h{i}": 1 for i in range(first, first + 150)}) for first in (0, 150, 300)
    ]
    here.land("1", encoded("json", [BOMB, *SPREAD, *wide]))
    report, code = here.attempt_batches()
    assert code == Exit.DONE, report.error
    assert len(report.findings) <= 11
    assert len(schema_drift.seen(here.layout)) == schema_drift.MOST_REMEMBERED + 1
    assert (
        len(json.loads(here.rows("_rescued_data", where="id = 'bomb'")[0]["_rescued_data"]))
        == 10_000
    )


@pytest.mark.long
def test_ten_thousand_fields_make_no_columns(landing: Make) -> None:
    here = landing(flow(drift={"new_columns": "add"}))
    here.land("1", encoded("json", [BOMB, row("k", 1, one="1")]))
    report, code = here.attempt_batches()
    assert code == Exit.DONE, report.error
    # with _rescued_data, one and two stamps
    assert len(here.layout.tables.target.query("select * from t").schema.names) == len(COLUMNS) + 4
    assert (
        f"more than {schema_drift.MOST_ADDED} unknown fields in 1 record"
        in told(report, "many-fields")[0].detail
    )
    before = here.layout.tables.target.version
    here.land("2", encoded("json", SPREAD))
    report, code = here.attempt_batches()
    assert (code, report.error["code"]) == (Exit.NEEDS_PERSON, "drift-failed")
    assert here.layout.tables.target.version == before


@pytest.mark.full
def test_names_that_sql_must_quote_come_later_too(landing: Make) -> None:
    target = {"keys": ["schlüssel"], "sequence_by": ["seq"]}
    columns = {"schlüssel": "string not null", "seq": "int not null"}
    here = landing(flow(columns=columns, target=target))
    here.land("1", encoded("json", [{"schlüssel": key, "seq": 1} for key in ("k1", "k2")]))
    assert here.attempt_batches()[1] == Exit.DONE
    nested = "array<struct<`order`: int, `größe.m`: map<string, struct<`from-to`: string>>>>"
    respecified(here, columns={**columns, "select": "int", "größe": nested})
    value = [{"order": 1, "größe.m": {"x": {"from-to": "y"}}}]
    here.land("2", encoded("json", [{"schlüssel": "k2", "seq": 2, "select": 7, "größe": value}]))
    report, code = here.attempt_batches()
    assert code == Exit.DONE, report.error
    (_, held) = sorted(here.rows(), key=lambda row: row["seq"])
    assert (held["schlüssel"], held["select"]) == ("k2", 7)
    assert held["größe"] == [{"order": 1, "größe.m": [("x", {"from-to": "y"})]}]


@pytest.mark.full
def test_a_changed_type_is_refused_and_the_old_contract_goes_on(landing: Make) -> None:
    here = landing(flow())
    here.land("1", encoded("json", [row("k1", 1)]))
    assert here.attempt_batches()[1] == Exit.DONE
    before = here.layout.tables.target.version
    here.land("2", encoded("json", [row("k2", 1)]))
    for changed in ({"seq": "bigint not null"}, {"A": "string"}):
        columns = {
            name: kind
            for name, kind in COLUMNS.items()
            if name.lower() not in map(str.lower, changed)
        } | changed
        respecified(here, columns=columns)
        report, code = here.attempt_batches()
        assert (code, report.error["code"]) == (Exit.NEEDS_PERSON, "table-mismatch")
        assert here.layout.tables.target.version == before
    respecified(here, columns={name: kind for name, kind in COLUMNS.items() if name != "a"})
    assert here.attempt_batches()[1] == Exit.DONE
    assert {r["id"]: (r["a"], r["_rescued_data"]) for r in here.rows()} == {
        "k1": ("x", None),
        "k2": (None, '{"a":"x"}'),
    }
    assert audit(here.spec, "f", root=here.home).clean


def test_the_likely_type_is_that_of_every_value_and_not_of_a_few(spark: Any) -> None:
    middle = [str(number) for number in range(10, 99)]
    cases: dict[str, list[str | None]] = {
        "fraction in the middle": [*middle, "97.5"],
        "word in the middle": [*middle, "5x"],
        "empty text": [*middle, ""],
        "whole": middle,
        "too large in the middle": [*middle, "3000000000"],
        "negative and too large": ["-3000000000", "-1"],
        "beyond bigint": ["1", "99999999999999999999"],
        "exponent": ["1", "1e3"],
        "booleans": ["true", "false", None],
        "a word beside booleans": ["false", "no", "true"],
        "days": ["2026-01-01", "2026-12-31"],
        "a day that is none": ["2026-01-01", "2026-13-45", "2026-12-31"],
        "days and moments": ["2026-01-01", "2026-01-01T12:00:00Z", "2026-01-01 12:00:00.5"],
        "objects": ['{"a": 1}', "1"],
        "no value": [None],
        "no text": [None, "", " "],
        "no object": ["{", "[info] x"],
    }
    rows = [(name, value) for name, values in cases.items() for value in values]
    frame = spark.createDataFrame(rows, "name string, value string")
    once = frame.groupBy("name").agg(*drift_marks._values(F.col("value")))
    twice = frame.groupBy("name", "value").agg(*drift_marks._values(F.col("value"))).groupBy("name")
    for found in (once, twice.agg(*drift_marks._merged())):
        likely = {
            row["name"]: schema_drift.likely(drift_marks._witnesses(row), FORMATS["json"])
            for row in found.collect()
        }
        assert likely == {
            name: schema_drift.likely(values, FORMATS["json"]) for name, values in cases.items()
        }


def _news(
    spark: SparkSession, declared: FlowSpec, read: Read, known: schema_drift.Known
) -> dict[str, tuple[int, str]]:
    """Return number of records and likely type by new field of some lines."""
    frame = parse(spark, declared, records_of([read], declared, known), now()).persist()
    told = drift_marks.marked(frame, ["u"], {"u": frame.count()})
    return {
        one.name: (one.rows, schema_drift.likely(one.values, declared.source.form))
        for one in told.new
    }


def _lines(spark: SparkSession, lines: Sequence[bytes], header: str | None = None) -> Read:
    rows = spark.createDataFrame([(bytearray(line),) for line in lines], "line binary")
    place = "'u' as _unit, 0L as _block, 0L as _id"
    return Read(rows.selectExpr("cast(line as string) as value", *place.split(", ")), header)


@pytest.mark.parametrize("form", ["json", "csv"])
def test_a_field_is_news_again_with_its_first_value_and_never_of_a_record_that_is_none(
    spark: SparkSession, form: str
) -> None:
    columns = {"id": "int", "n": "int"}
    declared = FlowSpec.model_validate(
        {"source": {"files": "x", "format": form}, "columns": columns}
    )
    null = [
        b'{"id": 1, "a": null, "b": ""}',
        b'{"id": 2, "a": null, "b": null}',
        b'{"id": 3, "caf\xe9": 1}',
    ]
    valued = [
        b'{"id": 4, "a": 7, "b": "x"}',
        b'{"id": 5, "a": null, "b": ""}',
        b'{"id": "six", "a": 8, "b": "y"}',
    ]
    header = None
    if form == "csv":
        null, valued, header = (
            [b'1,,""', b'2,,""', b"3,\xe9,"],
            [b"4,7,x", b"5,,", b"six,8,y"],
            "id,a,b",
        )
    found = _news(spark, declared, _lines(spark, null, header), schema_drift.Known())
    assert found == {"a": (2, "no value yet"), "b": (2, "empty text")}
    known = schema_drift.Known(null=frozenset("a"), empty=frozenset("b"))
    assert _news(spark, declared, _lines(spark, null, header), known) == {}
    found = _news(spark, declared, _lines(spark, valued, header), known)
    assert found == {"a": (2, "int"), "b": (2, "string")}, "values of quarantined records count"
