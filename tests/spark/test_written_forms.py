"""Dates, times and numbers in forms of their own: what the engine reads, and the audit's reader of
its own code.
"""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from draindown.audit import written
from draindown.config.landing import FlowSpec
from draindown.spark.contract.parsing import WHY
from tests.spark.test_parsing import parsed, reasons

MAY = datetime(2020, 5, 6, 7, 8, 9, tzinfo=UTC)
NOT = "not read"
CASES: list[tuple[dict[str, str], dict[str, Any]]] = [
    (
        {"type": "date", "format": "yyyy/M/d"},
        {
            "2012/01/01": date(2012, 1, 1),
            "2012/1/1": date(2012, 1, 1),
            " 2012/12/31 ": date(2012, 12, 31),
        }
        | dict.fromkeys(
            [
                "2016/13/45",
                "2015/2/29",
                "12/1/1",
                "2012-01-01",
                "2012/001/1",
                "2012/1/1 00:00",
                "",
                "\uff12012/1/1",
            ],
            NOT,
        )
        | {"2016/2/29": date(2016, 2, 29)},
    ),
    (
        {"type": "date", "format": "d.M.yyyy"},
        {"1.2.2020": date(2020, 2, 1), "01.02.2020": date(2020, 2, 1), "1,2,2020": NOT},
    ),
    (
        {"type": "date", "format": "yyyyMMdd"},
        {"20200131": date(2020, 1, 31), "2020131": NOT, "20200132": NOT, "x20200131": NOT},
    ),
    (
        {"type": "date", "format": "dd/MM/yy"},
        {"31/12/99": date(2099, 12, 31), "1/12/99": NOT, "31/12/1999": NOT},
    ),
    (
        {"type": "date", "format": "d-MMM-yyyy"},
        {
            "3-Jan-2020": date(2020, 1, 3),
            "3-Dec-2020": date(2020, 12, 3),
            "3-jan-2020": NOT,
            "3-Mai-2020": NOT,
        },
    ),
    (
        {"type": "date", "format": "yyyy/MM/dd HH:mm"},
        {"2010/01/01 00:00": date(2010, 1, 1), "2010/01/01 00:01": NOT, "2010/01/01": NOT},
    ),
    (
        {"type": "date", "format": "M/d/yyyy h:mm a"},
        {"1/2/2010 12:00 AM": date(2010, 1, 2), "1/2/2010 12:00 PM": NOT},
    ),
    (
        {"type": "timestamp_ntz", "format": "M/d/yy H:mm"},
        {"12/1/10 8:26": datetime(2010, 12, 1, 8, 26), "12/1/10 24:00": NOT, "12/1/10 8:60": NOT},
    ),
    (
        {"type": "timestamp", "format": "d MMM yyyy, h:mm:ss a"},
        {
            "6 May 2020, 7:08:09 AM": MAY,
            "6 May 2020, 7:08:09 pm": MAY.replace(hour=19),
            "6 May 2020, 13:08:09 AM": NOT,
        }
        | {
            "6 May 2020, 0:08:09 AM": NOT,
            "6 May 2020, 12:08:09 AM": MAY.replace(hour=0),
            "6 May 2020, 12:08:09 PM": MAY.replace(hour=12),
        },
    ),
    (
        {"type": "timestamp", "format": "dd.MM.yyyy"},
        {"06.05.2020": datetime(2020, 5, 6, tzinfo=UTC), "06.05.2020 07:08": NOT},
    ),
    (
        {"type": "timestamp", "format": "yyyy-MM-dd'T'HH:mm:ss.SSSXXX"},
        {
            "2020-05-06T07:08:09.120+02:00": MAY.replace(hour=5, microsecond=120000),
            "2020-05-06T07:08:09.120Z": MAY.replace(microsecond=120000),
        }
        | dict.fromkeys(
            [
                "2020-05-06T07:08:09.12Z",
                "2020-05-06T07:08:09.120",
                "2020-05-06T07:08:09.120+0200",
                "2020-05-06 07:08:09.120Z",
            ],
            NOT,
        ),
    ),
    (
        {
            "type": "timestamp",
            "format": "[dd/MMM/yyyy:HH:mm:ss Z]".replace("[", "'['").replace("]", "']'"),
        },
        {
            "[06/May/2020:09:08:09 +0200]": MAY,
            "[06/May/2020:09:08:09 Z]": NOT,
            "06/May/2020:09:08:09 +0200": NOT,
        },
    ),
    (
        {"type": "timestamp", "format": "yyyyMMddHHmmssX"},
        {
            "20200506070809Z": MAY,
            "20200506080809+01": MAY,
            "20200506093809+0230": MAY,
            "20200506070809": NOT,
        },
    ),
    (
        {"type": "timestamp", "format": "yyyy.MM.dd HH''mm"},
        {"2020.05.06 07'08": MAY.replace(second=0), "2020.05.06 0708": NOT},
    ),
    (
        {"type": "decimal(12,2)", "decimal_separator": ",", "thousands_separator": "."},
        {
            "1.234,50": Decimal("1234.50"),
            "-1.234.567,8": Decimal("-1234567.80"),
            "1234,5": Decimal("1234.50"),
            "12": Decimal("12.00"),
        }
        | dict.fromkeys(
            [
                "1,234.50",
                "1234.5",
                "12.34",
                "1.2345",
                "1.234,505",
                "1..234",
                ".234",
                "1.234,5,6",
                "1 234",
                "",
                "x",
                "NaN",
            ],
            NOT,
        ),
    ),
    (
        {"type": "double", "decimal_separator": ","},
        {
            "1,5": 1.5,
            "-,5": -0.5,
            "1,5e3": 1500.0,
            "1.5": NOT,
            "1.234,5": NOT,
            "Infinity": NOT,
            ",": NOT,
        },
    ),
    (
        {"type": "int", "thousands_separator": ","},
        {
            "1,234,567": 1234567,
            "-1,234": -1234,
            "7": 7,
            "1,23": NOT,
            "1,234.0": NOT,
            "9,999,999,999": NOT,
        },
    ),
    ({"type": "bigint", "thousands_separator": "'"}, {"1'234'567": 1234567, "1'234'56": NOT}),
    (
        {"type": "decimal(10,1)", "thousands_separator": "\u00a0", "decimal_separator": ","},
        {"1\u00a0234,5": Decimal("1234.5"), "1 234,5": NOT},
    ),
]
FLOW = {
    "source": {"format": "json"},
    "columns": {f"c{i}": column for i, (column, _) in enumerate(CASES)},
}


def test_text_is_read_by_its_form_or_refused(spark: SparkSession) -> None:
    asked = [
        (f"c{i}", text, wanted)
        for i, (_, texts) in enumerate(CASES)
        for text, wanted in texts.items()
    ]
    frame = parsed(spark, FLOW, *(json.dumps({name: text}) for name, text, _ in asked))
    rows = frame.orderBy("_id").select(*FLOW["columns"], F.col(f"{WHY}.*")).collect()
    for row, (name, text, wanted) in zip(rows, asked, strict=True):
        form = FLOW["columns"][name]
        if wanted == NOT:
            assert (row["reason"], row["field"], row[name]) == ("type", name, None), (form, text)
            assert "written" in row["detail"]
        else:
            found = row[name].replace(tzinfo=UTC) if form["type"] == "timestamp" else row[name]
            assert (row["reason"], found) == (None, wanted), (form, text)


@pytest.mark.parametrize("at", range(len(CASES)))
def test_the_audit_reads_the_same_by_its_own_code(at: int) -> None:
    flow = FlowSpec.model_validate({**FLOW, "source": {"files": "x", "format": "json"}})
    read = written.reader_of(flow, f"c{at}")
    assert read is not None
    kind = flow.columns[f"c{at}"].type
    for text, wanted in CASES[at][1].items():
        if wanted == NOT:
            continue  # what is refused is not read; where a value is out of its type's range the cast decides
        found = read(text)
        if kind == "date":
            assert date.fromisoformat(found) == wanted
        elif kind.startswith("timestamp"):
            moment = datetime.fromisoformat(found)
            assert (
                moment if moment.tzinfo or kind != "timestamp" else moment.replace(tzinfo=UTC)
            ) == wanted
        else:
            assert type(wanted)(found) == wanted


def test_a_number_of_json_needs_no_form(spark: SparkSession) -> None:
    """1.234 is a number of JSON, whatever separates thousands in text."""
    source = {"format": "json", "decimal_separator": ",", "thousands_separator": "."}
    flow = {
        "source": source,
        "columns": {
            "a": "double",
            "b": "decimal(9,3)",
            "c": "int",
            "d": "string",
            "e": {"type": "int", "thousands_separator": ","},
        },
    }
    frame = parsed(
        spark,
        flow,
        '{"a":1.234,"b":1.234,"c":1234,"d":1.5}',
        '{"a":"1.234","b":"1.234","c":"1.234","d":"1.5","e":"1,234"}',
        '{"c":1.234}',
        '{"e":"1.234"}',
        '{"b":1.2345}',
        '{"a":{"x":1}}',
        '{"a":null}',
    )
    good = frame.orderBy("_id").select("a", "b", "c", "d", "e").collect()
    assert tuple(good[0]) == (1.234, Decimal("1.234"), 1234, "1.5", None)
    assert tuple(good[1]) == (1234.0, Decimal("1234.000"), 1234, "1.5", 1234)
    assert reasons(frame)[2:] == [
        ("type", "c"),
        ("type", "e"),
        ("type", "b"),
        ("type", "a"),
        (None, None),
    ]


def test_a_field_is_read_under_another_name(spark: SparkSession) -> None:
    columns = {
        "invoice_no": {"type": "string not null", "from": "Invoice No"},
        "day": {"type": "date", "from": "Invoice Date", "format": "d.M.yyyy"},
        "net": {"type": "decimal(9,2)", "from": "Net (€)", "decimal_separator": ","},
        "text": {"type": "string", "from": "it's"},
        "any": {"type": "json", "from": "a.b"},
    }
    line = json.dumps(
        {
            "Invoice No": "7",
            "Invoice Date": "1.2.2020",
            "Net (€)": "1,50",
            "it's": "x",
            "a.b": [1],
            "net": 9,
        }
    )
    row = parsed(spark, {"source": {"format": "json"}, "columns": columns}, line).collect()[0]
    wanted = ("7", date(2020, 2, 1), Decimal("1.50"), "x", "[1]")
    assert tuple(row[name] for name in columns) == wanted and json.loads(row["_rescued_data"]) == {
        "net": "9"
    }
    columns.pop("any")
    flow = {"source": {"format": "csv", "delimiter": ";"}, "columns": columns}
    header = "Invoice Date;Invoice No;it's;Net (€);net"
    frame = parsed(spark, flow, "1.2.2020;7;x;1,50;9", ";;;;", header=header)
    row = frame.orderBy("_id").collect()[0]
    assert tuple(row[name] for name in columns) == wanted[:-1] and json.loads(
        row["_rescued_data"]
    ) == {"net": "9"}
    assert reasons(frame) == [(None, None), ("not_null", "invoice_no")]


@pytest.mark.parametrize("form", ["json", "csv"])
def test_columns_may_take_each_others_fields(spark: SparkSession, form: str) -> None:
    columns = {"a": {"type": "int", "from": "b"}, "b": {"type": "string", "from": "a"}}
    lines, header = (
        (('{"a":"x","b":1}', '{"a":"1","b":"x"}'), None)
        if form == "json"
        else (("x,1", "1,x"), "a,b")
    )
    frame = parsed(spark, {"source": {"format": form}, "columns": columns}, *lines, header=header)
    row = frame.orderBy("_id").collect()[0]
    assert (row["a"], row["b"]) == (1, "x")
    assert reasons(frame) == [(None, None), ("type", "a")]


def test_rows_of_columnar_units_come_back_under_the_names_of_their_file(
    spark: SparkSession,
) -> None:
    columns = {
        "a": {"type": "int not null", "from": "A B"},
        "day": {"type": "date", "from": "d", "format": "d.M.yyyy"},
    }
    line = '{"A B":1,"d":"1.2.2020"}'
    held = parsed(spark, {"source": {"format": "parquet"}, "columns": columns}, line).collect()[0]
    assert (held["a"], held["day"]) == (1, date(2020, 2, 1))
