"""CSV, Parquet, ORC and text: by header, by file schema, by line; what doesn't fit the contract is
refused by row.
"""

from __future__ import annotations

import gzip
import json
import shlex
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from draindown.audit.recount import audit
from draindown.base.exits import Exit
from draindown.cli.program import main
from draindown.sources.files import columnar as columnar_files
from draindown.spark.contract import parsing
from draindown.spark.sources.folded import split_records
from tests.landing import Injected, Landing

Make = Callable[[Mapping[str, Any]], Any]

CSV = {
    # name: (content, {position: (reason, field)}, {id: s})
    "plain.csv": (b"id,s,n\n1,a,1\n2,,\n3,c,\n", {}, {1: "a", 2: None, 3: "c"}),
    "reordered.csv": (b"n,id,s\n1,11,a\n", {}, {11: "a"}),
    "missing-column.csv": (b"id\n21\n22\n", {}, {21: None, 22: None}),
    "extra-column.csv": (b"id,more,s\n31,x,a\n32,,b\n", {}, {31: "a", 32: "b"}),
    "extra-cells.csv": (
        b'id,s\n41,a,x,,y\n42,b,\n43,c\n44,,,z\n45,d,"",,\n',
        {2: ("malformed", None), 5: ("malformed", None)},
        {42: "b", 43: "c", 45: "d"},
    ),
    "too-few.csv": (
        b"id,s,n\n51\n52,a\n53,,1\n",
        {2: ("malformed", None), 3: ("malformed", None)},
        {53: None},
    ),
    "repeated.csv": (
        b'id,s\n61,a\nid,s\n62,b\n\xef\xbb\xbfid,s\n63,c\n"id","s"\n id ,"s ",\n\xef\xbb\xbf"id",s\nid,t\n64,id\n',
        {10: ("type", "id")},
        {61: "a", 62: "b", 63: "c", 64: "id"},
    ),
    "quotes.csv": (
        b'id,s,n\n71,"a,b",1\n72,"say ""hi""",2\n73,"",3\n74,"open,4\n75,e,5\n',
        {5: ("malformed", None)},
        {71: "a,b", 72: 'say "hi"', 73: "", 75: "e"},
    ),
    "newlines.csv": (
        b'id,s\n81,"two\nlines"\n82,b\n83,"\n\n"\n84,x\n',
        {},
        {81: "two\nlines", 82: "b", 83: "\n\n", 84: "x"},
    ),
    "folded-bad.csv": (
        b'id,s,n\r\n91,"two\r\nlines",1\r\nx,b,1\r\n92,"caf\xe9\r\n",2\r\n93,"open,3\r\n94,"a\r\nb",4\r\n',
        {3: ("type", "id"), 4: ("malformed", None), 5: ("malformed", None)},
        {91: "two\r\nlines", 94: "a\r\nb"},
    ),
    "only-header.csv": (b"id,s\n", {}, {}),
    "blank.csv": (b"\n\n", {}, {}),
    "empty.csv": (b"", {}, {}),
    "bom.csv": (b"\xef\xbb\xbfid,s\n101,a\n", {}, {101: "a"}),
    "zipped.csv.gz": (gzip.compress(b"s,id\na,111\nb,x\n"), {3: ("type", "id")}, {111: "a"}),
    "folded.csv.gz": (
        gzip.compress(b'\xef\xbb\xbfs,id\n"a\nb",121\nb,x\n'),
        {3: ("type", "id")},
        {121: "a\nb"},
    ),
    "no-header.csv": (b"131,a,1\n132,b,2\n", {1: ("malformed", None), 2: ("malformed", None)}, {}),
    "one-record.csv": (b"133,a,1\n", {1: ("malformed", None)}, {}),
    "twice.csv": (b"id,s,s\n141,a,b\n", {2: ("malformed", None)}, {}),
    "other-twice.csv": (b"id,x,x\n151,a,b\n", {2: ("malformed", None)}, {}),
    "extra-name.csv": (b"id,_extra\n161,a\n162,a,b\n", {3: ("malformed", None)}, {161: None}),
    "unnamed.csv": (b"id,,s,\n171,a,b,c\n", {}, {171: "b"}),
    "wide.csv": (
        b"id,s\n181,a" + b",x" * 30_000 + b"\n182,a" + b"," * 30_000 + b"\n",
        {2: ("malformed", None)},
        {182: "a"},
    ),
    "very-wide.csv": (
        b"id,"
        + b",".join(b"c%d" % n for n in range(25_000))
        + b",s\n231"
        + b",x" * 25_000
        + b",a\n",
        {},
        {231: "a"},
    ),
    "misquoted.csv": (
        b'id,s,n\n241,"a\\"b",1\n242, "a",1\n243,"a" ,1\n244,a"b"c,1\n245,"a"b"",1\n246,"x, ""y""",1\n',
        dict.fromkeys(range(2, 7), ("malformed", None)),
        {246: 'x, "y"'},
    ),
    "returns.csv": (
        b'id,s\r251,"a\rb"\r252,"a\r\nb\n"\r',
        {},
        {251: "a\rb", 252: "a\r\nb\n"},
    ),
    "dollar.csv": (b"id,${env:HOME},s\n261,x,${env:HOME}\n", {}, {261: "${env:HOME}"}),
    "folded-header.csv": (b'id,"s\nt",s\n191,x,a\n', {}, {191: "a"}),
    "bad-bytes.csv": (b"id,s,caf\xe9\n201,a,b\n202,\xff,c\n", {3: ("malformed", None)}, {201: "a"}),
    "numbers.csv": (
        b'id,n\n211,"1,000"\n212,-\n213,1.5\n214, 7\n',
        {2: ("type", "n"), 3: ("type", "n"), 4: ("type", "n")},
        {214: None},
    ),
}


FEW_CSV = (
    *(
        "plain.csv",
        "extra-cells.csv",
        "too-few.csv",
        "repeated.csv",
        "quotes.csv",
        "folded-bad.csv",
        "blank.csv",
    ),
    *(
        "folded.csv.gz",
        "one-record.csv",
        "twice.csv",
        "unnamed.csv",
        "misquoted.csv",
        "returns.csv",
        "numbers.csv",
    ),
)
"""One of each rule. Each header that differs is a plan of its own."""


@pytest.fixture(
    scope="module",
    params=[FEW_CSV, pytest.param(tuple(CSV), marks=pytest.mark.long)],
    ids=["few", "all"],
)
def csv(request: pytest.FixtureRequest, landing: Make) -> Any:
    here = landing(
        {"source": {"format": "csv"}, "columns": {"id": "int not null", "s": "string", "n": "int"}}
    )
    here.cases = {name: CSV[name] for name in request.param}
    for name, (content, _, _) in here.cases.items():
        here.land(name, content)
    here.first, here.code = here.attempt_batches()
    assert here.code == Exit.DONE, here.first.error
    here.table = {row["id"]: row for row in here.rows()}
    here.quarantined = here.refused()
    return here


def test_each_csv_record_meets_its_fate(csv: Any) -> None:
    found = {place: (row["reason"], row["field"]) for place, row in csv.quarantined.items()}
    assert found == {
        (name, at): why
        for name, (_, refused, _) in csv.cases.items()
        for at, why in refused.items()
    }
    expected = {key: value for _, _, rows in csv.cases.values() for key, value in rows.items()}
    assert {key: row["s"] for key, row in csv.table.items()} == expected
    csv.sums()


def test_the_next_run_of_a_csv_flow_is_clean(csv: Any) -> None:
    report, code = csv.attempt_batches()
    assert (code, report.outcome) == (Exit.DONE, "idle")
    assert audit(csv.spec, "f", root=csv.home).residues == []


def test_csv_rescues_what_the_contract_does_not_name(csv: Any) -> None:
    expected = {
        31: {"more": "x"},
        161: {"_extra": "a"},
        171: {"_c1": "a", "_c3": "c"},
        191: {"s\nt": "x"},
        231: {f"c{n}": "x" for n in range(25_000)},
        261: {"${env:HOME}": "x"},
    }
    rescued = {
        key: json.loads(row["_rescued_data"])
        for key, row in csv.table.items()
        if row["_rescued_data"]
    }
    assert {key: rescued[key] for key in expected if key in csv.table} == {
        key: value for key, value in expected.items() if key in csv.table
    }
    assert 171 in rescued and csv.table[1]["_rescued_data"] is None


def test_csv_keeps_the_record_as_it_came(csv: Any) -> None:
    assert csv.quarantined["folded-bad.csv", 3]["raw"] == "x,b,1"
    assert csv.quarantined["folded-bad.csv", 4]["raw_bytes"] == b'92,"caf\xe9\r\n",2'
    assert csv.quarantined["folded-bad.csv", 5]["raw"] == '93,"open,3'
    assert csv.quarantined["quotes.csv", 5]["detail"] == "a quote is not closed"
    assert csv.quarantined["too-few.csv", 2]["detail"] == "1 cells under a header of 3"
    assert csv.quarantined["extra-cells.csv", 2]["detail"] == "5 cells under a header of 2"
    assert csv.quarantined["misquoted.csv", 3]["detail"] == "a quote where none can stand"
    assert (
        csv.quarantined["one-record.csv", 1]["detail"]
        == "the header names no column of the contract"
    )
    assert csv.quarantined["twice.csv", 2]["detail"] == "the header names a column twice"


def test_a_csv_header_is_no_record(landing: Make) -> None:
    here = landing({"source": {"format": "csv"}, "columns": {"id": "int not null", "s": "string"}})
    here.land("once", b"id,s\n1,a\n\n2,b\n")
    here.land("again", b"\nid,s\n3,a\nid,s\n4,b\n")
    here.land("folded", b'id,s\n5,"a\nb"\n')
    here.land("only", b"id,s\n")
    report, code = here.attempt_batches()
    assert code == Exit.DONE, report.error
    assert (here.sums()["records"], here.sums()["inserted"]) == (5, 5)
    assert audit(here.spec, "f", root=here.home).residues == []


def test_csv_without_header_and_with_another_delimiter(landing: Make) -> None:
    source = {"format": "csv", "header": False, "delimiter": "§"}
    here = landing({"source": source, "columns": {"id": "int not null", "s": "string"}})
    here.land("a", '1§a,b\n2§"c\nd"\n3\n4§e§f\n'.encode())
    here.land("b", b"")
    report, code = here.attempt_batches()
    assert code == Exit.DONE, report.error
    assert {row["id"]: row["s"] for row in here.rows()} == {1: "a,b", 2: "c\nd"}
    assert {at: row["reason"] for (_, at), row in here.refused().items()} == dict.fromkeys(
        (3, 4), "malformed"
    )
    here.sums()


def test_cells_that_turn_out_never_to_be_quoted_are_read_line_by_line(
    landing: Make, spark: SparkSession
) -> None:
    """A quarantined record's hint says to declare it; files that were taken in before hold an odd
    number of quotes.
    """
    columns = {"id": "int not null", "s": "string"}
    here = landing({"source": {"format": "csv"}, "columns": columns})
    here.land("a.csv", b'id,s\n1,5" disk\n\n2,x\n3,"y\n4,z"\n')
    with pytest.raises(Injected):
        here.apply(spark, fault="begun")
    here = Landing(
        here.home, spark, source={"format": "csv", "quote": "none"}, columns=columns, target={}
    )
    report, code = here.attempt_batches()
    assert code == Exit.DONE, report.error
    found = {row["_origin"]["position"]: (row["id"], row["s"]) for row in here.rows()}
    assert found == {2: (1, '5" disk'), 4: (2, "x"), 5: (3, '"y'), 6: (4, 'z"')}
    assert (here.sums()["lines"], here.sums()["blank"]) == (6, 2)
    assert audit(here.spec, "f", root=here.home).residues == []


@pytest.mark.parametrize(
    ("lines", "records"),
    [
        (['1,"a', 'b"'], ['1,"a\nb"']),
        (['1,"a', "b", "2,c"], ['1,"a', "b", "2,c"]),
        (['1,"a', '2,"b', '3,"c"'], ['1,"a', '2,"b', '3,"c"']),
        (['1,5" disk', "2,x", '3,"a', 'b"'], ['1,5" disk', "2,x", '3,"a\nb"']),
        (['1,"a""', '""b"'], ['1,"a""\n""b"']),
        (['"', '"'], ['"\n"']),
        (['"a', 'b","c', 'd"', "e"], ['"a\nb","c\nd"', "e"]),
        ([], []),
    ],
)
def test_a_quote_that_is_not_closed_costs_its_own_line(
    lines: list[str], records: list[str]
) -> None:
    assert list(split_records(f"{line}\n" for line in lines)) == records


def test_an_open_quote_is_not_followed_for_ever() -> None:
    lines = ['1,"open', *(f"{n},x" for n in range(100)), '2,"a"']
    assert list(split_records((f"{line}\n" for line in lines), limit=50)) == lines


MOMENT = datetime(2024, 7, 1, 12, 0, 0, 123456, tzinfo=UTC)
COLUMNS = {
    "id": "int not null",
    "n": "int",
    "d": "double",
    "dec": "decimal(10,2)",
    "s": "string",
    "day": "date",
    "at": "timestamp",
    "plain": "timestamp_ntz",
    "arr": "array<int>",
    "st": "struct<x: int, y: string>",
    "raw": "binary",
}


def _texts(*values: bytes) -> pa.Array:
    """Texts that need not be UTF-8, as some writers leave them."""
    plain = pa.array(values, pa.binary())
    return pa.StringArray.from_buffers(len(values), *plain.buffers()[1:])


def _tables() -> dict[str, tuple[pa.Table, dict[int, tuple[str, str]], dict[int, dict[str, Any]]]]:
    """Files by name: content, refused positions, and what the rows that land hold."""
    ids = pa.array([1, 2], pa.int32())
    good = {
        "n": 5,
        "d": 0.0,
        "dec": Decimal("1.50"),
        "s": "x",
        "day": date(2024, 2, 29),
        "at": MOMENT,
        "plain": MOMENT.replace(tzinfo=None),
        "arr": [1, None],
        "st": {"x": 1, "y": "z"},
        "raw": b"\xff\x00",
    }
    types = [
        ("n", pa.int32()),
        ("d", pa.float64()),
        ("dec", pa.decimal128(10, 2)),
        ("s", pa.string()),
    ]
    types += [
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("plain", pa.timestamp("us")),
    ]
    types += [
        ("arr", pa.list_(pa.int32())),
        ("st", pa.struct([("x", pa.int32()), ("y", pa.string())])),
    ]
    types += [("raw", pa.binary())]
    whole = {name: pa.array([good[name], None], kind) for name, kind in types}
    whole["d"] = pa.array([-0.0, None])
    return {
        "whole": (pa.table({"id": ids, **whole}), {}, {1: good, 2: dict.fromkeys(good)}),
        "reordered": (
            pa.table({"s": ["a"], "id": pa.array([11], pa.int32())}),
            {},
            {11: {"s": "a", "n": None}},
        ),
        "wider": (
            pa.table(
                {
                    "id": pa.array([21, 22, 2**40], pa.int64()),
                    "n": pa.array([7, 2**31, 1], pa.int64()),
                }
            ),
            {2: ("type", "n"), 3: ("type", "id")},
            {21: {"n": 7}},
        ),
        "narrower": (
            pa.table(
                {
                    "id": pa.array([31], pa.int8()),
                    "d": pa.array([1.5], pa.float32()),
                    "dec": pa.array([7]),
                }
            ),
            {},
            {31: {"d": 1.5, "dec": Decimal("7.00")}},
        ),
        "other-types": (
            pa.table(
                {
                    "id": ["41", "42", "x", "44"],
                    "n": [4.0, 4.7, 1.0, float("nan")],
                    "s": pa.array([1, 2, 3, 4]),
                    "day": ["2024-02-29"] * 4,
                }
            ),
            {2: ("type", "n"), 3: ("type", "id"), 4: ("type", "n")},
            {41: {"n": 4, "s": "1", "day": date(2024, 2, 29)}},
        ),
        "clashing": (
            pa.table(
                {
                    "id": [51, 52],
                    "at": pa.array([1_700_000_000, None]),
                    "st": [{"x": 2**40}, {"x": 3}],
                }
            ),
            {1: ("type", "at")},
            {52: {"at": None, "st": {"x": 3, "y": None}}},
        ),
        "infinite": (
            pa.table({"id": [61, 62, 63], "d": [float("inf"), float("nan"), 1.0]}),
            {1: ("type", "d"), 2: ("type", "d")},
            {63: {"d": 1.0}},
        ),
        "missing-key": (
            pa.table({"s": ["a", "b"]}),
            {1: ("not_null", "id"), 2: ("not_null", "id")},
            {},
        ),
        "null-key": (pa.table({"id": pa.array([71, None])}), {2: ("not_null", "id")}, {71: {}}),
        "unnamed": (
            pa.table(
                {
                    "id": [81],
                    "more": [1.5],
                    "_id": ["m"],
                    "_file": ["f"],
                    "_metadata": ["x"],
                    "_t0": [1],
                }
            ),
            {},
            {81: {}},
        ),
        "binary-text": (
            pa.table({"id": [91, 92], "s": pa.array([b"ok", b"\xff"])}),
            {2: ("type", "s")},
            {91: {"s": "ok"}},
        ),
        "latin-text": (
            pa.table(
                {
                    "id": [98, 99, 100, 101, 102],
                    "s": _texts(b"caf\xe9", "é".encode(), b"ok", b"ok", b"\xed\xa0\x80"),
                    "st": pa.StructArray.from_arrays(
                        [pa.array([1] * 5), _texts(b"x", b"y", b"caf\xe9", b"y", b"y")], ["x", "y"]
                    ),
                    "more": pa.array([[b"a"], [b"b"], [b"c"], [b"\xff"], None]).cast(
                        pa.list_(pa.binary())
                    ),
                    "raw": _texts(b"a", b"caf\xe9", b"a", b"a", b"a"),
                }
            ),
            dict.fromkeys((1, 3, 5), ("malformed", None)),
            {99: {"s": "é", "raw": b"caf\xe9"}, 101: {}},
        ),
        "too-large": (
            pa.table({"id": [95, 96], "s": ["x" * 9_000_000, "y"]}),
            {1: ("too_large", None)},
            {96: {"s": "y"}},
        ),
        "wide": (
            pa.table(
                {"id": [97, None], "s": ["w", "x"], **{f"w{n}": [n, None] for n in range(600)}}
            ),
            {2: ("not_null", "id")},
            {97: {"s": "w"}},
        ),
        "no-rows": (pa.table({"id": pa.array([], pa.int32())}), {}, {}),
        "many": (
            pa.table({"id": pa.array([None if n == 4_321 else 100_000 + n for n in range(5_000)])}),
            {4_322: ("not_null", "id")},
            {100_000 + n: {} for n in range(5_000) if n != 4_321},
        ),
    }


FEW_TABLES = ("whole", "wider", "other-types", "unnamed", "latin-text", "no-rows", "many")
"""One of each rule. Each schema that differs is a plan of its own."""


@pytest.fixture(
    scope="module",
    params=[
        ("parquet", False),
        *(pytest.param((form, True), marks=pytest.mark.long) for form in ("parquet", "orc")),
    ],
    ids=lambda param: f"{param[0]}-{'all' if param[1] else 'few'}",
)
def columnar(request: pytest.FixtureRequest, landing: Make) -> Any:
    form, everything = request.param
    here = landing({"source": {"format": form}, "columns": COLUMNS})
    here.format = form
    here.cases = {name: one for name, one in _tables().items() if everything or name in FEW_TABLES}
    for name, (table, _, _) in here.cases.items():
        if form == "parquet":
            pq.write_table(table, here.landing / name, row_group_size=1_000)
        else:
            orc.write_table(table, here.landing / name)
    here.land("zero", b"")
    whole = (here.landing / "many").read_bytes()
    here.land("half", whole[: len(whole) // 2])
    here.land("other", b'{"id":1}\n')
    if form == "parquet":
        _land_old_and_nanos(here)
    here.first, here.code = here.attempt_batches()
    assert here.code == Exit.DONE, here.first.error
    here.table = {row["id"]: row for row in here.rows()}
    here.quarantined = here.refused()
    return here


def _land_old_and_nanos(here: Any) -> None:
    moments = {
        "at": pa.array([MOMENT], pa.timestamp("ns", "UTC")),
        "plain": pa.array([MOMENT], pa.timestamp("ns")),
    }
    pq.write_table(pa.table({"id": [201], **moments}), here.landing / "nanos")
    old = pa.table({"id": [202], "at": moments["at"]})
    pq.write_table(old, here.landing / "int96", use_deprecated_int96_timestamps=True)
    row = {"at": MOMENT}
    for number, encoding in ((203, "BYTE_STREAM_SPLIT"), (205, "PLAIN")):
        table = pa.table(
            {"id": [number, number + 10], "d": [1.5, -2.25], "n": pa.array([7, None], pa.int32())}
        )
        columns = {"d": encoding, "n": encoding}
        pq.write_table(
            table, here.landing / encoding, use_dictionary=False, column_encoding=columns
        )
        here.cases[encoding] = (
            None,
            {},
            {number: {"d": 1.5, "n": 7}, number + 10: {"d": -2.25, "n": None}},
        )
    here.cases |= {
        "nanos": (None, {}, {201: row | {"plain": MOMENT.replace(tzinfo=None)}}),
        "int96": (None, {}, {202: row}),
    }


@pytest.mark.full
def test_columnar_rows_meet_their_fates(columnar: Any) -> None:
    wanted = {
        (name, at): why
        for name, (_, refused, _) in columnar.cases.items()
        for at, why in refused.items()
    }
    assert {
        place: (row["reason"], row["field"]) for place, row in columnar.quarantined.items()
    } == wanted
    rows = {key: row for _, _, held in columnar.cases.values() for key, row in held.items()}
    assert set(columnar.table) == set(rows)
    for key, row in rows.items():
        found = {name: columnar.table[key][name] for name in row}
        assert found == row, key
    assert str(columnar.table[1]["d"]) == "0.0"
    columnar.sums()


@pytest.mark.full
def test_columnar_rescues_and_parks(columnar: Any) -> None:
    assert json.loads(columnar.table[81]["_rescued_data"]) == {
        "more": 1.5,
        "_id": "m",
        "_file": "f",
        "_metadata": "x",
        "_t0": 1,
    }
    assert columnar.table[1]["_rescued_data"] is None
    if "wide" in columnar.cases:
        assert json.loads(columnar.table[97]["_rescued_data"]) == {f"w{n}": n for n in range(600)}
    bad = f"bad-{columnar.format}"
    assert columnar.parked() == {"half": bad, "other": "wrong-container"}


@pytest.mark.full
def test_a_refused_row_is_kept_as_json(columnar: Any) -> None:
    assert json.loads(columnar.quarantined["wider", 2]["raw"]) == {"id": 22, "n": 2**31}
    assert columnar.quarantined["wider", 2]["detail"] == "2147483648 is no int"
    assert columnar.quarantined["many", 4_322]["raw"] == '{"id":null}'
    assert Path(columnar.quarantined["many", 4_322]["origin"]["input"]).name == "many"


@pytest.mark.full
def test_the_next_run_of_a_columnar_flow_is_clean(columnar: Any) -> None:
    report, code = columnar.attempt_batches()
    assert (code, report.outcome) == (Exit.DONE, "idle")
    assert audit(columnar.spec, "f", root=columnar.home).residues == []


PLACES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "as it is": ({}, {}),
    "wide": ({f"w{n}": [n] * 4 for n in range(600)}, {}),
    "split": (
        {"d": [0.5] * 4},
        {"use_dictionary": False, "column_encoding": {"d": "BYTE_STREAM_SPLIT"}},
    ),
}
"""Columns and options of Parquet files: one that Spark reads itself, and two that are read through
a copy.
"""


@pytest.mark.full
@pytest.mark.parametrize("old", [True, False], ids=["int96", "nanoseconds"])
def test_times_are_the_same_whether_their_file_is_copied_or_not(landing: Make, old: bool) -> None:
    """INT96 is an instant of any year; of nanoseconds the digits beyond microseconds are cut,
    before 1970 too.
    """
    zones = {"timezone": "America/New_York"}
    columns = {
        "id": "int not null",
        "at": "timestamp",
        "wall": "timestamp_ntz",
        "st": "struct<xs: array<timestamp>>",
    }
    here = landing({"source": {"format": "parquet", **zones}, "columns": columns})
    unit = "us" if old else "ns"
    years = [datetime(year, 12, 31, tzinfo=UTC) for year in ((9999, 1600) if old else (2261, 1969))]
    at = pa.array([MOMENT, *years, None], pa.timestamp(unit, "UTC"))
    if not old:
        at = pa.array([*at.cast(pa.int64()).to_pylist()[:2], -1, None], at.type)
    st = pa.StructArray.from_arrays([pa.ListArray.from_arrays([0, 1, 2, 3, 4], at)], names=["xs"])
    walls = {} if old else {"wall": at.cast(pa.timestamp("ns"))}
    options = {"use_deprecated_int96_timestamps": True} if old else {}
    for number, (name, (more, special)) in enumerate(PLACES.items()):
        ids = pa.array([number * 10 + n for n in range(4)], pa.int32())
        table = pa.table({"id": ids, "at": at, "st": st, **walls, **more})
        pq.write_table(table, here.landing / name, **options, **special)
    report, code = here.attempt_batches()
    assert code == Exit.DONE, report.error
    rows = {row["id"]: [row["at"], row["wall"], row["st"]["xs"][0]] for row in here.rows()}
    last = years[1] if old else datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    for number, name in enumerate(PLACES):
        for n, moment in enumerate([MOMENT, years[0], last, None]):
            wall = None if old or moment is None else moment.replace(tzinfo=None)
            assert rows[number * 10 + n] == [moment, wall, moment], (name, n)


CLOCKS = {
    "at": "timestamp",
    "wall": "timestamp_ntz",
    "day": "date",
    "st": "struct<xs: array<timestamp>>",
    "m": "map<timestamp,int>",
}
NOON = datetime(2026, 7, 1, 12)


@pytest.mark.parametrize("zone", [pytest.param("UTC", marks=pytest.mark.full), "America/New_York"])
def test_times_of_orc_are_what_clocks_of_the_flow_s_zone_showed(landing: Make, zone: str) -> None:
    """Whether Spark reads their file or a copy, at any depth, and in an hour that the clocks of the
    zone skip.
    """
    here = landing(
        {"source": {"format": "orc", "timezone": zone}, "columns": {"id": "int not null", **CLOCKS}}
    )
    at = pa.array([NOON, datetime(2026, 3, 8, 2, 30), None], pa.timestamp("us"))
    day = pa.array([NOON.replace(hour=0), None, None], at.type)
    st = pa.StructArray.from_arrays(
        [pa.ListArray.from_arrays([0, 1, 1, 2], pa.array([NOON, None], at.type))], ["xs"]
    )
    m = pa.array([[(NOON, 1)], None, None], pa.map_(at.type, pa.int64()))
    for number, more in enumerate(({}, {f"w{n}": [n] * 3 for n in range(600)})):
        ids = pa.array([number * 10 + n for n in range(3)], pa.int32())
        orc.write_table(
            pa.table({"id": ids, "at": at, "wall": at, "day": day, "st": st, "m": m, **more}),
            here.landing / str(number),
        )
    report, code = here.attempt_batches()
    assert code == Exit.DONE, report.error
    rows = {row["id"]: [row[name] for name in CLOCKS] for row in here.rows()}
    moment = NOON.replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
    skipped = zone != "UTC"
    for number in (0, 10):
        assert rows[number] == [moment, NOON, NOON.date(), {"xs": [moment]}, [(moment, 1)]], number
        assert ((number + 1) in rows) is not skipped
    refused = {place: (row["reason"], row["field"]) for place, row in here.refused().items()}
    assert refused == ({(name, 2): ("type", "at") for name in ("0", "1")} if skipped else {})


@pytest.mark.full
@pytest.mark.parametrize("codec", ["zstd", "snappy", "zlib", "lz4", "none"])
def test_times_of_orc_that_spark_wrote_stay_instants(
    spark: SparkSession, landing: Make, codec: str
) -> None:
    here = landing(
        {
            "source": {"format": "orc", "timezone": "Europe/Berlin"},
            "columns": {"id": "int", **CLOCKS},
        }
    )
    clocks, moment = spark._jvm.java.util.TimeZone, NOON.replace(tzinfo=UTC)  # type: ignore[union-attr]
    assert clocks.getDefault().getID() == "UTC"
    at = "timestamp'2026-07-01 12:00:00Z'"
    sql = f"{at} as at, named_struct('xs', array({at})) as st, map({at}, 1) as m"
    for number, zone in enumerate(("UTC", "America/New_York")):
        clocks.setDefault(clocks.getTimeZone(zone))
        try:
            rows = spark.sql(f"select {number} as id, {sql}")
            rows.coalesce(1).write.option("compression", codec).orc(str(here.home / zone))
        finally:
            clocks.setDefault(clocks.getTimeZone("UTC"))
        (written,) = (here.home / zone).glob("*.orc")
        written.rename(here.landing / str(number))
    report, code = here.attempt_batches()
    assert code == Exit.DONE, report.error
    found = {row["id"]: (row["at"], row["st"]["xs"], row["m"]) for row in here.rows()}
    assert found == {number: (moment, [moment], [(moment, 1)]) for number in (0, 1)}
    assert audit(here.spec, "f", root=here.home).residues == []


@pytest.mark.full
def test_a_sequence_with_nanoseconds_is_refused_whether_its_file_is_copied_or_not(
    landing: Make,
) -> None:
    columns = {"id": "int not null", "at": {"type": "timestamp not null", "from": "At"}}
    here = landing(
        {
            "source": {"format": "parquet"},
            "columns": columns,
            "target": {"keys": ["id"], "sequence_by": ["at"]},
        }
    )
    nanos = pa.array([1_000_000_000, 1_000_000_001, -1, -1_000], pa.timestamp("ns", "UTC"))
    for number, (name, (more, special)) in enumerate(PLACES.items()):
        ids = pa.array([number * 10 + n for n in range(4)], pa.int32())
        pq.write_table(pa.table({"id": ids, "At": nanos, **more}), here.landing / name, **special)
    report, code = here.attempt_batches()
    assert code == Exit.DONE, report.error
    refused = {place: (row["reason"], row["field"]) for place, row in here.refused().items()}
    assert refused == {(name, at): ("type", "at") for name in PLACES for at in (2, 3)}
    assert {row["id"] for row in here.rows()} == {
        number * 10 + n for number in range(3) for n in (0, 3)
    }


@pytest.mark.full
@pytest.mark.parametrize("place", ["split", pytest.param("as it is", marks=pytest.mark.long)])
def test_a_time_that_microseconds_cannot_hold_is_told_with_its_file(
    landing: Make, place: str
) -> None:
    here, (more, special) = (
        landing({"source": {"format": "parquet"}, "columns": {"id": "int"}}),
        PLACES[place],
    )
    for name, at in (("odd", 2**63 // 1000 + 1), ("good", 0)):
        table = pa.table(
            {"id": range(4), "at": pa.array([at] * 4, pa.timestamp("ms", "UTC")), **more}
        )
        pq.write_table(table, here.landing / name, **special)
    report, code = here.attempt_batches()
    assert (code, report.error["code"]) == (Exit.NEEDS_PERSON, "file-unreadable")
    assert ("landing/odd" in report.error["found"], "landing/good" in report.error["found"]) == (
        True,
        False,
    )


@pytest.mark.full
def test_a_file_that_only_the_engine_cannot_read_is_named_and_left_out(
    landing: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = "BYTE_STREAM_SPLIT"  # read through a copy, if it is known that Spark doesn't read it
    monkeypatch.setattr(columnar_files, "_ENCODINGS", columnar_files._ENCODINGS | {odd})
    here = landing({"source": {"format": "parquet"}, "columns": {"id": "int", "d": "double"}})
    table = pa.table({"id": [1, 2], "d": [1.5, 2.5]})
    pq.write_table(table, here.landing / "good")
    pq.write_table(table, here.landing / "brotli", compression="brotli")
    pq.write_table(
        table, here.landing / "odd", use_dictionary=False, column_encoding={"d": odd, "id": "PLAIN"}
    )
    report, code = here.attempt()
    assert (code, report.error["code"]) == (Exit.NEEDS_PERSON, "file-unreadable")
    assert ("odd" in report.error["found"], "good" in report.error["found"]) == (True, False)
    assert here.parked() == {"brotli": "unsupported-compression"}
    here.write_pipeline()
    assert (
        main(["--root", str(here.home), *shlex.split(report.error["next"][0], comments=True)[1:]])
        == 0
    )
    report, code = here.attempt()
    assert code == Exit.DONE, report.error
    assert sorted(row["id"] for row in here.rows()) == [1, 2]
    assert audit(here.spec, "f", root=here.home).residues == []
    assert here.attempt()[0].outcome == "idle"


@pytest.mark.full
def test_a_file_with_a_value_on_which_the_engine_fails_is_named_and_left_out(
    landing: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raising(_: DataFrame, cell: str, kind: str) -> Column:
        return F.expr(f"cast({cell} as {kind})")

    monkeypatch.setattr(parsing, "typed", raising)
    here = landing({"source": {"format": "json"}, "columns": {"id": "int"}})
    here.land("good.json", b'{"id":1}\n')
    here.land("odd.json", b'{"id":2}\n{"id":"x"}\n')
    report, code = here.attempt()
    assert (code, report.error["code"]) == (Exit.NEEDS_PERSON, "file-unreadable")
    assert ("odd.json" in report.error["found"], "good.json" in report.error["found"]) == (
        True,
        False,
    )
    here.write_pipeline()
    assert (
        main(["--root", str(here.home), *shlex.split(report.error["next"][0], comments=True)[1:]])
        == 0
    )
    report, code = here.attempt()
    assert code == Exit.DONE, report.error
    assert [row["id"] for row in here.rows()] == [1]


@pytest.mark.full
def test_a_scratch_directory_that_is_gone_is_no_fault_of_a_file(
    spark: SparkSession, landing: Make
) -> None:
    """A cleaner of temporary files may sweep it. Each file alone fails then too."""
    here = landing({})
    here.deliver(b'{"id": "a", "seq": 1}')
    jvm: Any = spark._jvm
    disk = jvm.org.apache.spark.SparkEnv.get().blockManager().diskBlockManager()
    # Spark makes a folder within when it first needs it, and doesn't look again
    for number in range(1000):
        disk.getFile(f"any{number}")
    moved = {Path(one): Path(f"{one}-aside") for one in disk.localDirsString()}
    for place, aside in moved.items():
        place.rename(aside)
    try:
        report, code = here.attempt()
    finally:
        for place, aside in moved.items():
            aside.rename(place)
    assert code != Exit.DONE
    assert report.error["code"] != "file-unreadable"
    assert "blockmgr" in report.error["found"], report.error
    report, code = here.attempt()
    assert code == Exit.DONE, report.error


def test_only_empty_columnar_files(landing: Make) -> None:
    here = landing({"source": {"format": "parquet"}, "columns": {"id": "int"}})
    here.land("zero", b"")
    report, code = here.attempt_batches()
    assert code == Exit.DONE, report.error
    assert here.sums()["records"] == 0


def test_text_is_appended_line_by_line(landing: Make) -> None:
    here = landing(
        {"source": {"format": "text", "max_record_bytes": "100b"}, "columns": {"value": "string"}}
    )
    here.land(
        "a.log",
        b"\xef\xbb\xbfone\n\ntwo\r\n  three \rfour, \xc3\xbc\n\xff\n" + b"x" * 101 + b"\nlast",
    )
    here.land("b.log.gz", gzip.compress(b"one\n"))
    report, code = here.attempt_batches()
    assert code == Exit.DONE, report.error
    assert sorted(row["value"] for row in here.rows()) == sorted(
        ["one", "one", "two", "  three ", "four, ü", "last"]
    )
    refused = {at: row["reason"] for (_, at), row in here.refused().items()}
    assert refused == {6: "malformed", 7: "too_large"}
    sums = here.sums()
    assert (sums["lines"], sums["blank"]) == (9, 1)
