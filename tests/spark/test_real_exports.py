"""Exports as people really send them: each ends right or is refused by row, without a transform."""

from __future__ import annotations

import gzip
import io
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from draindown.audit.recount import audit
from draindown.base.exits import Exit
from tests.landing import Landing

DAY = date(2010, 12, 1)


@dataclass(frozen=True)
class Export:
    """A file, how it is declared, the rows that must be in the table, and the quarantined records:
    position and reason.
    """

    name: str
    content: bytes
    source: dict[str, Any]
    columns: dict[str, Any]
    rows: list[tuple[Any, ...]]
    refused: list[tuple[int, str, str | None]] = field(default_factory=list)
    target: dict[str, Any] = field(default_factory=dict)


def _parquet(columns: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out)
    return out.getvalue()


def _orc(columns: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    orc.write_table(pa.table(columns), out)
    return out.getvalue()


def at(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type, misc]


EXPORTS = [
    Export(  # a shop's export: blanks in the header, American times, a BOM
        "retail.csv",
        b"\xef\xbb\xbfInvoice No,Stock Code,Description,Quantity,Invoice Date,Unit Price,Customer ID\r\n"
        b'536365,85123A,"WHITE, HANGING",6,12/1/2010 8:26,2.55,17850\r\nC536379,D,,-1,12/1/2010 9:41,27.50,\r\n'
        b"536370,22728,ALARM,24,13/45/2010 8:45,3.75,12583\r\n",
        {"format": "csv"},
        {
            "invoice": {"type": "string not null", "from": "Invoice No"},
            "quantity": {"type": "int not null", "from": "Quantity"},
            "at": {"type": "timestamp", "from": "Invoice Date", "format": "M/d/yyyy H:mm"},
            "price": {"type": "decimal(9,2)", "from": "Unit Price"},
        },
        [
            ("536365", 6, at(2010, 12, 1, 8, 26), Decimal("2.55")),
            ("C536379", -1, at(2010, 12, 1, 9, 41), Decimal("27.50")),
        ],
        [(4, "type", "at")],
    ),
    Export(  # a German bank's: semicolons, decimal commas, dots in thousands
        "umsaetze.csv",
        'Buchungstag;Empfänger;"Betrag (€)";Saldo\n'
        "01.12.2010;Müller & Söhne;-1.234,56;10.000,00\n1.12.2010;;0,5;9.999\n"
        "01.12.2010;Falsch;12.34;1,00\n31.11.2010;Nie;1,00;1,00\n".encode(),
        {"format": "csv", "delimiter": ";", "decimal_separator": ",", "thousands_separator": "."},
        {
            "booked": {"type": "date not null", "from": "Buchungstag", "format": "d.M.yyyy"},
            "who": {"type": "string", "from": "Empfänger"},
            "amount": {"type": "decimal(12,2)", "from": "Betrag (€)"},
            "balance": {"type": "double", "from": "Saldo"},
        },
        [
            (DAY, "Müller & Söhne", Decimal("-1234.56"), 10000.0),
            (DAY, None, Decimal("0.50"), 9999.0),
        ],
        [(4, "type", "amount"), (5, "type", "booked")],
    ),
    Export(  # Swiss numbers, tabs, no header
        "kurse.tsv",
        b"ABBN\t1'234.50\t01/12/10\nNESN\t99.1\t01/12/10\nUBSG\t12'34\t01/12/10\n",
        {"format": "csv", "delimiter": "\t", "header": False, "thousands_separator": "'"},
        {
            "symbol": "string",
            "price": "decimal(9,2)",
            "day": {"type": "date", "format": "dd/MM/yy"},
        },
        [("ABBN", Decimal("1234.50"), DAY), ("NESN", Decimal("99.10"), DAY)],
        [(3, "type", "price")],
    ),
    Export(  # compact days, pipes, line ends in quotes
        "register.csv",
        b'id|valid from|note\n1|20101201|"two\nlines"\n2|2010-12-01|x\n3|20101201|\n',
        {"format": "csv", "delimiter": "|"},
        {
            "id": "int not null",
            "since": {"type": "date not null", "from": "valid from", "format": "yyyyMMdd"},
            "note": "string",
        },
        [(1, DAY, "two\nlines"), (3, DAY, None)],
        [(3, "type", "since")],
        {"keys": ["id"], "sequence_by": ["since"]},  # whose newest the audit finds in the file, too
    ),
    Export(  # a data frame saved with its header and its texts
        "frame.parquet",
        _parquet(
            {
                "Invoice No": ["1", "2", "3"],
                "day": ["1.12.2010", "2010-12-01", "01.12.2010"],
                "net": [1.5, 2.5, None],
            }
        ),
        {"format": "parquet"},
        {
            "invoice": {"type": "string not null", "from": "Invoice No"},
            "booked": {"type": "date not null", "from": "day", "format": "d.M.yyyy"},
            "net": {"type": "double", "decimal_separator": ","},
        },
        [("1", DAY, 1.5), ("3", DAY, None)],
        [(2, "type", "booked")],
        {"keys": ["invoice"], "sequence_by": ["booked"]},
    ),
    Export(  # a weather station's: days with a midnight, French numbers with a blank that doesn't break
        "pluie.csv.gz",
        gzip.compress(
            "Date;Pluie mm\n2010/12/01 00:00;1\u00a0234,5\n2010/12/01 07:00;0,0\n".encode()
        ),
        {
            "format": "csv",
            "delimiter": ";",
            "decimal_separator": ",",
            "thousands_separator": "\u00a0",
        },
        {
            "day": {"type": "date not null", "from": "Date", "format": "yyyy/MM/dd HH:mm"},
            "rain": {"type": "double", "from": "Pluie mm"},
        },
        [(DAY, 1234.5)],
        [(3, "type", "day")],
    ),
    Export(  # an API's answer saved as it came: one array
        "orders.json",
        b'[\n  {"Order Id": 1, "placedAt": "2010-12-01T08:26:00.123+01:00", "total": 12.50},\n'
        b'  {"Order Id": 2, "placedAt": "yesterday"},\n  "no object",\n'
        b'  {"Order Id": 3, "placedAt": null, "x": {"y": 1}}]\n',
        {"format": "json", "multiline": True},
        {
            "id": {"type": "bigint not null", "from": "Order Id"},
            "at": {
                "type": "timestamp",
                "from": "placedAt",
                "format": "yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
            },
            "total": "decimal(9,2)",
        },
        [(1, at(2010, 12, 1, 7, 26, 0, 123000), Decimal("12.50")), (3, None, None)],
        [(2, "type", "at"), (3, "malformed", None)],
    ),
    Export(  # objects over several lines, one after the other
        "devices.json",
        b'{\n  "device": "a",\n  "tags": ["x", "y"]\n}\n{\n  "device": "b",\n  "tags": "x"\n}\n{"device": "c"}\n',
        {"format": "json", "multiline": True},
        {"device": "string not null", "tags": "array<string>"},
        [("a", ["x", "y"]), ("c", None)],
        [(2, "type", "tags")],
    ),
    Export(  # German numbers as text in JSON, beside numbers of JSON
        "preise.json",
        b'{"sku": "a", "price": "1.234,50"}\n{"sku": "b", "price": 1.234}\n{"sku": "c", "price": "1234.5"}\n',
        {"format": "json", "decimal_separator": ",", "thousands_separator": "."},
        {"sku": "string not null", "price": "decimal(9,3)"},
        [("a", Decimal("1234.500")), ("b", Decimal("1.234"))],
        [(3, "type", "price")],
    ),
    Export(  # twelve hours and English months, quotes in quotes
        "calls.csv",
        b'When,"Caller ""Name""",Minutes\n"1 Dec 2010, 8:26:00 PM","Ann ""A"" Lee","1,234"\n'
        b'"1 Dez 2010, 8:26:00 PM",Bo,1\n"1 Dec 2010, 12:00:00 am",Cy,0\n',
        {"format": "csv", "thousands_separator": ","},
        {
            "at": {
                "type": "timestamp_ntz not null",
                "from": "When",
                "format": "d MMM yyyy, h:mm:ss a",
            },
            "name": {"type": "string", "from": 'Caller "Name"'},
            "minutes": {"type": "int", "from": "Minutes"},
        },
        [
            (datetime(2010, 12, 1, 20, 26), 'Ann "A" Lee', 1234),
            (datetime(2010, 12, 1), "Cy", 0),
        ],
        [(3, "type", "at")],
    ),
    Export(  # a web server's times, in lines of JSON packed with gzip
        "access.json.gz",
        gzip.compress(
            b'{"time":"01/Dec/2010:09:26:00 +0100","bytes":"1,024","@id":"7"}\n'
            b'{"time":"01/Dec/2010:09:26:00","bytes":"1","@id":"8"}\n{"broken\n'
        ),
        {"format": "json"},
        {
            "at": {"type": "timestamp", "from": "time", "format": "dd/MMM/yyyy:HH:mm:ss Z"},
            "bytes": {"type": "bigint", "thousands_separator": ","},
            "id": {"type": "string", "from": "@id"},
        },
        [(at(2010, 12, 1, 8, 26), 1024, "7")],
        [(2, "type", "at"), (3, "malformed", None)],
    ),
    Export(  # a warehouse's: text beside values of its own types, names with blanks, two columns the other way round
        "bestand.orc",
        _orc(
            {
                "Artikel Nr.": ["A-1", "A-2", "A-3", None],
                "Stand (am)": ["1.12.2010", "31.12.2010", "31.11.2010", "1.1.2011"],
                "Preis": ["1.234,50", "7", "1,00", "1,00"],
                "menge": [1, None, 3, 4],
                "lager": ["1", "2", "3", "4"],
                "Posten": [[{"n": 1}], [], None, None],
                "gebucht": pa.array([at(2010, 12, 1), None, None, None], pa.timestamp("us", "UTC")),
            }
        ),
        {"format": "orc", "decimal_separator": ",", "thousands_separator": "."},
        {
            "sku": {"type": "string not null", "from": "Artikel Nr."},
            "day": {"type": "date not null", "from": "Stand (am)", "format": "d.M.yyyy"},
            "price": {"type": "decimal(9,2)", "from": "Preis"},
            "lager": {"type": "bigint", "from": "menge"},
            "menge": {"type": "int", "from": "lager"},
            "lines": {"type": "array<struct<n: bigint>>", "from": "Posten"},
            "booked": {"type": "timestamp", "from": "gebucht"},
        },
        [
            ("A-1", DAY, Decimal("1234.50"), 1, 1, [{"n": 1}], at(2010, 12, 1)),
            ("A-2", date(2010, 12, 31), Decimal(7), None, 2, [], None),
        ],
        [(3, "type", "day"), (4, "not_null", "sku")],
        {"keys": ["sku"], "sequence_by": ["day"]},
    ),
]


@pytest.mark.long
@pytest.mark.parametrize("export", EXPORTS, ids=lambda export: export.name)
def test_an_export_ends_right_or_is_refused_by_row(
    spark: SparkSession, tmp_path: Path, export: Export
) -> None:
    landing = Landing(
        tmp_path, spark, source=export.source, columns=export.columns, target=export.target
    )
    landing.land(export.name, export.content)
    report, code = landing.attempt()
    assert (report.outcome, code) == ("done", Exit.DONE)
    kinds = {
        name: column["type"] if isinstance(column, dict) else column
        for name, column in export.columns.items()
    }
    found = [
        tuple(_shown(row[name]) for name in kinds)
        for row in sorted(landing.rows(), key=lambda row: str(row[next(iter(kinds))]))
    ]
    assert found == [
        tuple(_shown(value) for value in row)
        for row in sorted(export.rows, key=lambda row: str(row[0]))
    ]
    kept = landing.layout.tables.quarantine.rows("select * from t order by origin.position")
    assert [
        (row["origin"]["position"], row["reason"], row["field"]) for row in kept
    ] == export.refused
    told = audit(landing.spec, "f", root=tmp_path)
    assert told.clean, told


def _shown(value: Any) -> Any:
    return (
        value.astimezone(UTC).isoformat() if isinstance(value, datetime) and value.tzinfo else value
    )
