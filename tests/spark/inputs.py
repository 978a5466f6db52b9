"""Bad input by number (B1 to B38): the bytes, and by hand what must become of every record in them.

Nothing here asks draindown. A delivery says which ids land, which positions are refused and why,
and whether the file is kept out; `records` counts what its bytes hold, and both must agree.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import struct
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq

Refused = Mapping[int, tuple[str, str | None]]
MALFORMED, MISSING, LARGE = ("malformed", None), ("not_null", "id"), ("too_large", None)


@dataclass(frozen=True)
class Delivery:
    """One file: what must land (id, and what its row holds), what is refused by position, or why it
    is kept out.

    `parked`: reason of a file that can't be read; `told`: words of the finding about one that isn't
    looked into. `repaired`: name and bytes by which it is right afterwards, and the ids that land
    then. `header`, `folded`: lines that are no records, and line ends inside quotes.
    """

    case: str
    name: str
    content: bytes
    lands: Mapping[Any, Mapping[str, Any]] = field(default_factory=dict)
    refused: Refused = field(default_factory=dict)
    parked: str | None = None
    told: str | None = None
    repaired: tuple[str, bytes, frozenset[Any]] | None = None
    header: int = 0
    folded: int = 0
    rows: int | None = None

    @property
    def kept_out(self) -> bool:
        """Whether nothing of the file is read."""
        return bool(self.parked or self.told)

    @property
    def records(self) -> int:
        """Records that the bytes hold, by plain Python."""
        if self.rows is not None or self.kept_out:
            return self.rows or 0
        raw = gzip.decompress(self.content) if self.content[:2] == b"\x1f\x8b" else self.content
        lines = re.split(rb"\r\n|\n|\r", raw.removeprefix(b"\xef\xbb\xbf"))
        return sum(bool(line.strip()) for line in lines) - self.header - self.folded


def row(number: int, **more: Any) -> bytes:
    """A JSON record."""
    return json.dumps({"id": number, **more}).encode()


def ids(*numbers: Any) -> dict[Any, dict[str, Any]]:
    """Rows that land, whatever they hold."""
    return {number: {} for number in numbers}


def lines(*records: bytes, end: bytes = b"\n") -> bytes:
    """A file of records."""
    return b"".join(record + end for record in records)


def broken(
    case: str, name: str, content: bytes, reason: str, good: bytes, *again: Any, to: str = ""
) -> Delivery:
    """A file that is parked, then delivered right under the same name (or `to`)."""
    return Delivery(
        case, name, content, parked=reason, repaired=(to or name, good, frozenset(again))
    )


def unseen(case: str, name: str, words: str, number: int, to: str) -> Delivery:
    """A good file under a name that isn't read, then renamed."""
    good = row(number) + b"\n"
    return Delivery(case, name, good, told=words, repaired=(to, good, frozenset([number])))


def fields(
    case: str, name: str, number: int, refused: list[tuple[bytes, tuple[str, str | None]]]
) -> Delivery:
    """One good record between refused ones."""
    content = lines(row(number), *[raw for raw, _ in refused], row(number + 1))
    return Delivery(
        case,
        name,
        content,
        ids(number, number + 1),
        {at: why for at, (_, why) in enumerate(refused, 2)},
    )


def clash(name: str, value: Any) -> tuple[bytes, tuple[str, str]]:
    """A record in which one field is not what the contract says."""
    return row(1, **{name: value}), ("type", name)


JSON = {
    "source": {"format": "json", "max_record_bytes": "256kb"},
    "columns": {
        "id": "int not null",
        "i": "int",
        "d": "double",
        "dec": "decimal(12,2)",
        "s": "string",
        "at": "timestamp",
        "arr": "array<int>",
        "flag": "boolean",
        "wall": "timestamp_ntz",
        "box": "struct<x: double, at: timestamp>",
        "m": "map<int, double>",
    },
    "rules": {"range": "i is null or i between -1000 and 1000000"},
}
_MANY = lines(*[row(n) for n in range(100_000, 101_000)])
_WHOLE = gzip.compress(_MANY, mtime=0)
_THOUSAND = range(100_000, 101_000)
_DEEP = b'{"id":1,"s":' + b"[" * 20_000 + b"1" + b"]" * 20_000 + b"}"
_NARROW = [f"key_{n}" for n in range(21)]


def _flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x20]) + data[at + 1 :]


def _shifted(by: int) -> bytes:
    """A good gzip file of a thousand records of its own."""
    return gzip.compress(lines(*[row(n + by) for n in _THOUSAND]), mtime=0)


def _thousand(by: int) -> list[int]:
    return [n + by for n in _THOUSAND]


_GZ = {n: _shifted(n * 1000) for n in range(8)}
json_files = [
    Delivery(
        "B0", "good.json", lines(row(1), row(2, s="é", d=1.5)), {1: {}, 2: {"s": "é", "d": 1.5}}
    ),
    broken("B1", "half.gz", _GZ[0][: len(_GZ[0]) // 2], "truncated", _GZ[0], *_thousand(0)),
    broken("B1", "no-end.gz", _GZ[1][:-1], "truncated", _GZ[1], *_thousand(1000)),
    broken(
        "B2",
        "flip.gz",
        _flipped(_GZ[2], len(_GZ[2]) // 2),
        "corrupt-gzip",
        _GZ[2],
        *_thousand(2000),
    ),
    broken(
        "B2", "crc.gz", _flipped(_GZ[3], len(_GZ[3]) - 6), "corrupt-gzip", _GZ[3], *_thousand(3000)
    ),
    broken("B2", "trailing.gz", _GZ[4] + b"garbage", "trailing-garbage", _GZ[4], *_thousand(4000)),
    broken("B3", "text.gz", row(301) + b"\n", "not-gzip", gzip.compress(row(301)), 301),
    broken(
        "B3", "packed.json", _GZ[5], "gzip-not-named", _GZ[5], *_thousand(5000), to="packed.json.gz"
    ),
    Delivery("B4", "empty.json", b""),
    Delivery("B4", "empty.json.gz", gzip.compress(b"")),
    Delivery("B4", "no-bytes.json.gz", b""),
    Delivery("B5", "torn.json", row(501) + b'\n{"id":502,"s":"to', ids(501), {2: MALFORMED}),
    Delivery("B5", "torn-but-whole.json", row(503) + b"\n" + row(504), ids(503, 504)),
    Delivery(
        "B6",
        "nul.json",
        lines(
            row(601),
            b'{"id":1,"s":"\x00"}',
            b"\x00\x00",
            bytes(range(128, 256)),
            b"\x7fELF\x02",
            row(602),
        ),
        ids(601, 602),
        dict.fromkeys((2, 3, 4, 5), MALFORMED),
    ),
    Delivery("B7", "bom.json", b"\xef\xbb\xbf" + lines(row(701), row(702)), ids(701, 702)),
    broken(
        "B7", "utf16.json", lines(row(703)).decode().encode("utf-16"), "not-utf-8", row(703), 703
    ),
    broken(
        "B7",
        "utf16-without-mark.json",
        '{"id":704}\n'.encode("utf-16-le"),
        "not-utf-8",
        row(704),
        704,
    ),
    Delivery(
        "B8",
        "latin.json",
        lines(
            row(801),
            '{"id":1,"s":"café"}'.encode("latin-1"),
            b'{"id":1,"s":"\xc3"}',
            '{"id":802,"s":"ü"}'.encode(),
        ),
        {801: {}, 802: {"s": "ü"}},
        {2: MALFORMED, 3: MALFORMED},
    ),
    Delivery(
        "B9",
        "crlf.json",
        lines(row(901), b"x", row(902), end=b"\r\n"),
        ids(901, 902),
        {2: MALFORMED},
    ),
    Delivery(
        "B9", "cr.json", lines(row(903), b"x", row(904), end=b"\r"), ids(903, 904), {2: MALFORMED}
    ),
    Delivery(
        "B9",
        "mixed.json",
        row(905) + b"\r\n" + row(906) + b"\r\r" + row(907) + b"\n\rx",
        ids(905, 906, 907),
        {6: MALFORMED},
    ),
    fields(
        "B14",
        "clash.json",
        1401,
        [
            clash("i", 4.7),
            clash("i", "x"),
            clash("i", True),
            clash("d", [1]),
            clash("arr", "x"),
            clash("id", "x1"),
        ],
    ),
    fields(
        "B15",
        "thousands.json",
        1501,
        [clash("i", "1,000"), clash("d", "1,5"), clash("i", "-"), clash("dec", "1.234,5")],
    ),
    fields(
        "B16",
        "ranges.json",
        1601,
        [
            clash("i", 2**31),
            (b'{"id":1,"d":1e400}', ("type", "d")),
            (b'{"id":1,"d":-1e400}', ("type", "d")),
            (b'{"id":1,"d":NaN}', MALFORMED),
            clash("d", "NaN"),
            clash("d", "-Infinity"),
            clash("dec", 10**11),
            clash("dec", "1e-999999999"),
            (b'{"id":1,"dec":1e-999999999}', ("type", "dec")),
            (row(1, i=-2000), ("rule:range", None)),
        ],
    ),
    Delivery(
        "B16",
        "exact.json",
        lines(b'{"id":1651,"d":-0.0,"dec":0.10}', b'{"id":1652,"dec":9999999999.99,"i":-0}'),
        {1651: {"d": 0.0, "dec": Decimal("0.10")}, 1652: {"dec": Decimal("9999999999.99"), "i": 0}},
    ),
    fields(
        "B17",
        "keys.json",
        1701,
        [(raw, MISSING) for raw in (b"{}", b'{"ID":1}', b'{"id":null}', b'{" id ":1}', b'{"":1}')]
        + [(b'{"id":""}', ("type", "id"))],
    ),
    fields(
        "B18",
        "twice.json",
        1801,
        [
            (b'{"id":1,"id":2}', MALFORMED),
            (b'{"id":1,"x":1,"x":2}', MALFORMED),
            (b'{"id":1,"\\u0069d":2}', MALFORMED),
        ],
    ),
    fields(
        "B19",
        "values.json",
        1901,
        [
            (raw, MALFORMED)
            for raw in (
                b"[]",
                b'[{"id":1},{"id":2}]',
                b"5",
                b'"x"',
                b"null",
                b"true",
                b'{"id":1} {"id":2}',
            )
        ],
    ),
    Delivery("B19", "blank.json", b"\n \n\t\n" + row(1951) + b"\n\n", ids(1951)),
    Delivery(
        "B20",
        "deep.json",
        lines(
            row(2001),
            _DEEP,
            b"[" * 50_000,
            b'{"a":' * 30_000,
            json.dumps({"id": 2002, **{f"c{n}": n for n in range(10_000)}}).encode(),
        ),
        ids(2001, 2002),
        dict.fromkeys((2, 3, 4), MALFORMED),
    ),
    Delivery(
        "B21",
        "large.json",
        lines(row(2101), row(1, s="x" * 300_000), b'{"id":1,"s":"' + b"y" * 400_000, row(2102)),
        ids(2101, 2102),
        {2: LARGE, 3: LARGE},
    ),
    Delivery(
        "B25",
        "epochs.json",
        lines(
            row(2501, at="2024-01-01T00:00:00Z"),
            *[row(1, at=v) for v in (1704067200, 1704067200000, "1704067200000000", 1.7e18)],
        ),
        {2501: {"at": datetime(2024, 1, 1, tzinfo=UTC)}},
        dict.fromkeys((2, 3, 4, 5), ("type", "at")),
    ),
    Delivery(
        "B33",
        "lax.json",
        lines(
            row(3301, flag=True, d=9007199254740992),
            row(3302, flag="false", d="9007199254740994"),
            *[row(1, flag=v) for v in (1, "yes", "t", "off")],
            *[
                raw
                for raw, _ in (clash("d", 9007199254740993), clash("d", "0x1p3"), clash("i", "7\t"))
            ],
            row(1, wall="2024-07-01T12:00:00+02:00"),
            b'{"id":1,"s":1e400}',
            row(3303, wall="2024-07-01T12:00:00"),
        ),
        {3301: {"flag": True, "d": 2.0**53}, 3302: {"flag": False}, 3303: {}},
        dict.fromkeys((3, 4, 5, 6), ("type", "flag"))
        | {
            7: ("type", "d"),
            8: ("type", "d"),
            9: ("type", "i"),
            10: ("type", "wall"),
            11: ("type", "s"),
        },
    ),
    Delivery(
        "B34",
        "nested.json",
        lines(
            row(3401, box={"x": 0.5, "at": "2024-07-01T12:00:00Z"}, m={"7": 0.5}),
            b'{"id":1,"box":{"x":1e400}}',
            *[
                row(1, box={"at": at})
                for at in (1719835200, "2024-07", "12:30", "2024-07-01T12:00:00 BST")
            ],
            b'{"id":1,"m":{"7":-1e400}}',
            row(1, m={"x": 0.5}),
            row(3402, box={"x": 1, "new": True}),
            row(3403, box={"X": 1}),
        ),
        {
            3401: {},
            3402: {"_rescued_data": {"box": '{"x":1,"new":true}'}},
            3403: {"_rescued_data": {"box": '{"X":1}'}},
        },
        dict.fromkeys((2, 3, 4, 5, 6), ("type", "box")) | dict.fromkeys((7, 8), ("type", "m")),
    ),
    fields(
        "B36",
        "halves.json",
        3601,
        [
            (rb'{"id":1,"s":"cut \ud83d"}', MALFORMED),
            (rb'{"id":1,"x":["\uDE00"]}', MALFORMED),
            (rb'{"\ud83dx":1,"id":1}', MALFORMED),
        ],
    ),
    Delivery(
        "B36",
        "pairs.json",
        lines(rb'{"id":3611,"s":"\ud83d\ude00"}', rb'{"id":3612,"s":"\\ud83d"}'),
        {3611: {"s": "😀"}, 3612: {"s": r"\ud83d"}},
    ),
    *[
        Delivery("B28", name, lines(row(2800 + n), b"x"), ids(2800 + n), {2: MALFORMED})
        for n, name in enumerate(
            [
                "%2F%2e%2e%2F.json",
                "x..%2e..json",
                "[*]{a,b}?.json",
                "n" * 250 + ".json",
                unicodedata.normalize("NFC", "é.json"),
                unicodedata.normalize("NFD", "é.json"),
                " blank .json",
                "-rf.json",
                "k=1.json",
                "$(id);`id`&'\".json",
                "\u202egnp.json",
                "+ #.json",
                "back\\slash.json",
            ]
        )
    ],
    unseen("B28", "a:b.json", "colon or a control character", 2851, "a-b.json"),
    unseen("B28", "new\nline.json", "colon or a control character", 2852, "new-line.json"),
    unseen("B28", "\x1b[31mred.json", "colon or a control character", 2853, "red.json"),
    unseen("B28", "_hidden.json", "hidden", 2854, "hidden.json"),
    unseen("B28", ".dot.json", "hidden", 2855, "dot.json"),
    unseen("B28", "..json", "hidden", 2857, "two-dots.json"),
    unseen("B28", "loading.json.tmp", "temporary", 2856, "loading.json"),
    Delivery(
        "B31",
        "sets.json",
        lines(*[row(3100 + n, **dict.fromkeys(_NARROW[: n + 1], n)) for n in range(21)]),
        {3100 + n: {"_rescued_data": {key: str(n) for key in _NARROW[: n + 1]}} for n in range(21)},
    ),
    Delivery(
        "B31",
        "clashing-sets.json",
        lines(
            row(3151, x=1),
            row(3152, x="1"),
            row(3153, x={"y": [1]}),
            row(3154, x=None),
            row(3155, i="7", s=5),
        ),
        {
            3151: {"_rescued_data": {"x": "1"}},
            3152: {"_rescued_data": {"x": "1"}},
            3153: {"_rescued_data": {"x": '{"y":[1]}'}},
            3154: {},
            3155: {"i": 7, "s": "5"},
        },
    ),
]

CSV = {"source": {"format": "csv"}, "columns": {"id": "int not null", "s": "string", "n": "int"}}
csv_files = [
    Delivery("B0", "good.csv", b"id,s,n\n1,a,1\n", {1: {"s": "a", "n": 1}}, header=1),
    broken(
        "B1",
        "half.csv.gz",
        gzip.compress(b"id,s\n101,a\n" * 50)[:30],
        "truncated",
        gzip.compress(b"id\n101\n"),
        101,
    ),
    Delivery("B4", "empty.csv", b""),
    Delivery("B4", "only-header.csv", b"id,s,n\n", header=1),
    Delivery("B5", "torn.csv", b'id,s,n\n501,a,1\n502,"b', ids(501), {3: MALFORMED}, header=1),
    Delivery(
        "B6",
        "nul.csv",
        b"id,s,n\n601,a\x00b,1\n\x00\x00\n602,x,2\n",
        {601: {"s": "a\x00b"}, 602: {}},
        {3: MALFORMED},
        header=1,
    ),
    Delivery(
        "B8", "latin.csv", b"id,s,n\n801,a,1\n1,caf\xe9,1\n", ids(801), {3: MALFORMED}, header=1
    ),
    broken(
        "B8",
        "latin-header.csv",
        b"id,caf\xe9,n\n811,a,1\n1,\xe9,1\n",
        "header-not-utf-8",
        "id,café,n\n811,a,1\n812,é,1\n".encode(),
        *(811, 812),
    ),
    Delivery(
        "B9", "crlf.csv", b"id,s,n\r\n901,a,1\r\nx,a,1\r\n", ids(901), {3: ("type", "id")}, header=1
    ),
    Delivery("B9", "cr.csv", b"id,s,n\r902,a,1\rx,a,1\r", ids(902), {3: ("type", "id")}, header=1),
    Delivery(
        "B10",
        "quotes.csv",
        b'id,s,n\r\n1001,"two\r\nlines",1\r\n1002,"un""b,2\r\n1003,"a\nb\n\nc",3\r\n1004,c,4\r\n',
        {1001: {"s": "two\r\nlines"}, 1003: {"s": "a\nb\n\nc"}, 1004: {}},
        {3: MALFORMED},
        header=1,
        folded=3,
    ),
    Delivery(
        "B10",
        "open.csv",
        b'id,s,n\n1011,"open,1\n1012,b,2\n1013,c,3\n',
        ids(1012, 1013),
        {2: MALFORMED},
        header=1,
    ),
    Delivery(
        "B35",
        "misquoted.csv",
        b'id,s,n\n3301,"a\\"b",1\n3302, "a, b",1\n3303,"a" ,1\n3304,5" disk,1\n3305,Roe, Ann,1\n3306,"5"" disk",1\n',
        {3306: {"s": '5" disk'}},
        dict.fromkeys((2, 3, 4, 5, 6), MALFORMED),
        header=1,
    ),
    Delivery(
        "B35",
        "ends.csv",
        b'id,s,n\n3311,"a\r\nb",1\n3312,"a\rb",1\n3313,"",1\n3314,,1\n',
        {3311: {"s": "a\r\nb"}, 3312: {"s": "a\rb"}, 3313: {"s": ""}, 3314: {"s": None}},
        header=1,
        folded=2,
    ),
    Delivery(
        "B35",
        "very-wide.csv",
        ",".join(["id", *[f"c{n}" for n in range(25_000)]]).encode()
        + b"\n3321"
        + b",1" * 25_000
        + b"\n",
        ids(3321),
        header=1,
    ),
    Delivery("B11", "reordered.csv", b"n,id,s\n7,1101,a\n", {1101: {"s": "a", "n": 7}}, header=1),
    Delivery("B12", "no-header.csv", b"1201,a,1\n1202,b,2\n", {}, {1: MALFORMED, 2: MALFORMED}),
    Delivery("B12", "one-record.csv", b"1203,a,1\n", {}, {1: MALFORMED}),
    Delivery(
        "B12", "repeated.csv", b"id,s,n\n1204,a,1\nid,s,n\n1205,b,2\n", ids(1204, 1205), header=2
    ),
    Delivery(
        "B12",
        "joined.csv",
        b"id,s,n\n1208,a,1\n\xef\xbb\xbfid,s,n\n1209,b,2\n",
        ids(1208, 1209),
        header=2,
    ),
    Delivery(
        "B12",
        "other-header.csv",
        b"id,s,n\n1206,a,1\nn,s,id\n1207,b,2\n",
        ids(1206, 1207),
        {3: ("type", "id")},
        header=1,
    ),
    Delivery(
        "B13",
        "extra.csv",
        b"id,new,s,n\n1301,x,a,1\n",
        {1301: {"s": "a", "_rescued_data": {"new": "x"}}},
        header=1,
    ),
    Delivery("B13", "missing.csv", b"id,s\n1302,a\n", {1302: {"n": None}}, header=1),
    Delivery(
        "B13",
        "cells.csv",
        b"id,s,n\n1303,a\n1304,a,1,more\n1305,a,1,,\n",
        {1305: {"n": 1}},
        {2: MALFORMED, 3: MALFORMED},
        header=1,
    ),
    Delivery("B13", "no-key.csv", b"s,n\na,1\nb,2\n", {}, {2: MISSING, 3: MISSING}, header=1),
    Delivery(
        "B15",
        "numbers.csv",
        b'id,n,s\n1501,"1,000",a\n1502,-,a\n1503,"1,5",a\n1504,7,a\n1505,,a\n',
        {1504: {"n": 7}, 1505: {"n": None}},
        dict.fromkeys((2, 3, 4), ("type", "n")),
        header=1,
    ),
    Delivery("B17", "keys.csv", b"id,s,n\n,a,1\n 1701 ,a,1\n", ids(1701), {2: MISSING}, header=1),
    Delivery(
        "B20",
        "wide.csv",
        ",".join(["id", *[f"c{n}" for n in range(10_000)]]).encode()
        + b"\n2001"
        + b",1" * 10_000
        + b"\n",
        ids(2001),
        header=1,
    ),
    Delivery(
        "B28",
        "x\u2028y.csv",
        "id,s,n\n2801,a\u2028b\u0085c,1\n".encode(),
        {2801: {"s": "a\u2028b\u0085c"}},
        header=1,
    ),
]

TEXT = {"source": {"format": "text", "max_record_bytes": "1kb"}, "columns": {"value": "string"}}
text_files = [
    Delivery("B0", "good.log", b"good\n", ids("good")),
    Delivery("B6", "nul.log", b"a\x00b\n\xff\xfe\xfd\nb6\n", ids("a\x00b", "b6"), {2: MALFORMED}),
    Delivery("B8", "latin.log", b"caf\xe9\nb8\n", ids("b8"), {1: MALFORMED}),
    Delivery("B9", "ends.log", b"b9a\rb9b\r\nb9c\n\n", ids("b9a", "b9b", "b9c")),
    Delivery(
        "B21", "long.log", b"b21\n" + b"x" * 2_000 + b"\nb21b\n", ids("b21", "b21b"), {2: LARGE}
    ),
    broken(
        "B2",
        "trailing.log.gz",
        gzip.compress(b"b2\n") + b"\0" * 512,
        "trailing-garbage",
        gzip.compress(b"b2\n"),
        "b2",
    ),
]

COLUMNS = {
    "id": "int not null",
    "n": "int",
    "d": "double",
    "s": "string",
    "at": "timestamp",
    "dec": "decimal(10,2)",
    "xs": "array<double>",
    "box": "struct<a: int>",
}


FAR = datetime(9999, 12, 31, tzinfo=UTC)


def _texts(*values: bytes) -> pa.Array:
    return pa.StringArray.from_buffers(len(values), *pa.array(values, pa.binary()).buffers()[1:])


def _columnar(form: str) -> list[Delivery]:
    def packed(table: pa.Table, **more: Any) -> bytes:
        out = io.BytesIO()
        if form == "parquet":
            pq.write_table(table, out, row_group_size=500, **more)
        else:
            orc.write_table(table, out)
        return out.getvalue()

    def delivery(
        case: str, name: str, table: pa.Table, lands: Any, refused: Any = None, **more: Any
    ) -> Delivery:
        return Delivery(
            case, name, packed(table, **more), lands, refused or {}, rows=table.num_rows
        )

    many = packed(pa.table({"id": list(range(300_000, 302_000)), "s": ["x" * 20] * 2000}))
    small = pa.table({"id": [3001], "s": ["again"]})
    end = len(many) - 8
    footer = struct.unpack("<I", many[end : end + 4])[0] if form == "parquet" else 40
    wide = pa.table({"id": [2001], **{f"c{n}": [n] for n in range(10_000)}})
    # ORC with zones is read through pyarrow, to which such a time is none
    zone = "UTC" if form == "parquet" else None
    found = [
        delivery("B0", "good", pa.table({"id": [1, 2], "d": [-0.0, None]}), {1: {"d": 0.0}, 2: {}}),
        Delivery("B4", "zero", b""),
        delivery("B4", "no-rows", pa.table({"id": pa.array([], pa.int32())}), {}),
        delivery(
            "B14",
            "clash",
            pa.table({"id": [1401, 1402], "n": ["7", "x"]}),
            {1401: {"n": 7}},
            {2: ("type", "n")},
        ),
        delivery(
            "B16",
            "numbers",
            pa.table({"id": [1601, 2**40, 1603], "d": [1.0, 1.0, float("nan")]}),
            ids(1601),
            {2: ("type", "id"), 3: ("type", "d")},
        ),
        delivery(
            "B34",
            "nested",
            pa.table({"id": [3401, 3402, 3403], "xs": [[0.5], [float("nan")], [float("inf")]]}),
            ids(3401),
            dict.fromkeys((2, 3), ("type", "xs")),
        ),
        delivery(
            "B34",
            "fields",
            pa.table({"id": [3411, 3412], "box": [{"a": 1, "b": "new"}, {"a": 2, "b": None}]}),
            {3411: {"_rescued_data": {"box": {"a": 1, "b": "new"}}}, 3412: {}},
        ),
        delivery("B20", "wide", wide, ids(2001)),
        delivery(
            "B21",
            "large",
            pa.table({"id": [2101, 2102], "s": ["x" * 9_000_000, "y"]}),
            ids(2102),
            {1: LARGE},
        ),
        delivery(
            "B25",
            "last-day",
            pa.table({"id": [2502, 2503], "at": pa.array([FAR, None], pa.timestamp("us", zone))}),
            {2502: {"at": FAR}, 2503: {"at": None}},
        ),
        delivery(
            "B25",
            "epochs",
            pa.table({"id": [2501], "at": [1_704_067_200_000]}),
            {},
            {1: ("type", "at")},
        ),
        broken("B30", "half", many[: len(many) // 2], f"bad-{form}", packed(small), 3001),
        broken(
            "B30", "text", b'{"id":1}\n', "wrong-container", packed(pa.table({"id": [3002]})), 3002
        ),
        broken(
            "B30",
            "footer",
            many[: end - footer // 2] + bytes(footer // 2) + many[end:],
            f"bad-{form}",
            packed(pa.table({"id": [3003]})),
            3003,
        ),
        delivery(
            "B36",
            "latin",
            pa.table(
                {"id": [3401, 3402, 3403], "s": _texts(b"caf\xe9", "é".encode(), b"\xed\xa0\x80")}
            ),
            {3402: {"s": "é"}},
            {1: MALFORMED, 3: MALFORMED},
        ),
        delivery("B30", "no-column", pa.table({"s": ["a"]}), {}, {1: MISSING}),
        delivery(
            "B30", "null-key", pa.table({"id": pa.array([3005, None])}), ids(3005), {2: MISSING}
        ),
        delivery(
            "B30", "other-type", pa.table({"id": ["3006", "x"]}), ids(3006), {2: ("type", "id")}
        ),
    ]
    if form == "parquet":
        moment = datetime(2024, 7, 1, 12, tzinfo=UTC)
        old = pa.table({"id": [3007], "at": pa.array([moment], pa.timestamp("ns", "UTC"))})
        found += [
            delivery(
                "B30", "int96", old, {3007: {"at": moment}}, use_deprecated_int96_timestamps=True
            ),
            delivery(
                "B38",
                "split",
                pa.table({"id": [3601, 3602], "d": [1.5, -2.25]}),
                {3601: {"d": 1.5}, 3602: {"d": -2.25}},
                use_dictionary=False,
                column_encoding={"d": "BYTE_STREAM_SPLIT"},
            ),
            delivery("B29", "k=1/in", pa.table({"id": [2901]}), ids(2901)),
            delivery(
                "B29",
                "k=x/in",
                pa.table({"id": [2902], "k": [5]}),
                {2902: {"_rescued_data": {"k": 5}}},
            ),
        ]
    return found


KEYED = {
    "source": {"format": "json", "timezone": "America/New_York", "max_files_per_trigger": 7},
    "columns": {"k": "string not null", "at": "timestamp not null", "n": "int", "gone": "boolean"},
    "rules": {"plausible": "at between '2000-01-01' and arrived_at + interval 1 day"},
    "target": {"keys": ["k"], "sequence_by": ["at"], "apply_as_deletes": "gone"},
}
NOON = datetime(2024, 6, 1, 12, tzinfo=UTC)
RULE, NO_TIME = ("rule:plausible", None), ("type", "at")


def change(key: str, at: Any = NOON, **more: Any) -> bytes:
    """A change of a key."""
    return json.dumps(
        {"k": key, "at": at.isoformat() if isinstance(at, datetime) else at, **more}
    ).encode()


def _late(seconds: int) -> datetime:
    return NOON - timedelta(seconds=seconds)


def keyed_files(now: datetime) -> list[Delivery]:
    """In the order in which they are drained, seven in the first batch. `lands` is the table in the
    end.
    """
    soon, far = now + timedelta(hours=1), now + timedelta(days=30)
    new_york = [
        change("gap", "2024-03-10T02:30:00", n=0),
        change("gap", "2024-03-10T01:59:59", n=1),
        change("overlap", "2024-11-03T01:30:00", n=0),
        change("overlap", "2024-11-03T01:30:00-05:00", n=1),
        change("leap", "2024-02-29T24:10:00", n=0),
        change("leap", "2024-02-29T23:59:60", n=0),
        change("plain", "2024-07-01T12:00:00", n=1),
        change("nepal", "2024-07-01T12:00:00+05:45", n=1),
        change("old-zone", "2024-07-01T12:00:00-00:25:21", n=1),
        change("named", "2024-07-01T12:00:00 Europe/Berlin", n=1),
        change("day", "2024-07-01", n=1),
        change("overlap", "2024-10-27T02:30:00 Europe/Berlin", n=2),
        change("letters", "2024-07-01T12:00:00 BST", n=1),
        change("letters", "2024-07-01T12:00:00 IST", n=1),
    ]
    found = [
        Delivery("B0", "00.json", lines(change("good", n=1)), {"good": {"n": 1, "at": NOON}}),
        Delivery("B22", "01.json", lines(*[change("same", n=1)] * 3), {"same": {"n": 1}}),
        Delivery("B22", "02.json", lines(change("same", n=1))),
        Delivery(
            "B23",
            "03.json",
            lines(change("tie", n=5), change("tie", n=9), change("tie", n=7)),
            {"tie": {"n": 9}},
        ),
        Delivery(
            "B23",
            "04.json",
            lines(change("tie", n=8), change("tie-gone", n=1), change("tie-gone", gone=True)),
        ),
        Delivery(
            "B24",
            "05.json",
            lines(change("born-dead", NOON, gone=True), change("twice", _late(60), gone=True)),
        ),
        Delivery(
            "B24",
            "06.json",
            lines(
                change("born-dead", _late(1), n=1),
                change("twice", NOON, n=2),
                change("good", _late(10), n=0),
            ),
            {"twice": {"n": 2}},
        ),
        Delivery(
            "B25",
            "07.json",
            lines(
                *[
                    change("poison", at, n=0)
                    for at in (
                        "1970-01-01T00:00:00Z",
                        "0001-01-01T00:00:00Z",
                        far,
                        "9999-12-31T23:59:59Z",
                    )
                ],
                *[
                    change("poison", at, n=0)
                    for at in (
                        "+294247-01-10T04:00:54Z",
                        1704067200000,
                        1704067200,
                        "1704067200000000",
                    )
                ],
                change("poison", soon, n=1),
                change("fine", "2024-06-01T12:00:00.123456000Z", n=1),
                change("too-fine", "2024-06-01T12:00:00.123456789Z", n=1),
            ),
            {"poison": {"n": 1, "at": soon}, "fine": {"at": NOON.replace(microsecond=123456)}},
            {1: RULE, 2: RULE, 3: RULE, 4: RULE} | dict.fromkeys((5, 6, 7, 8, 11), NO_TIME),
        ),
        Delivery(
            "B26",
            "08.json",
            lines(*[change(f"late{s}", n=1) for s in (1, 3600, 2_592_000)]),
            {f"late{s}": {"n": 1, "at": NOON} for s in (1, 3600, 2_592_000)},
        ),
        Delivery(
            "B26",
            "09.json",
            lines(*[change(f"late{s}", _late(s), n=0) for s in (1, 3600, 2_592_000)]),
        ),
        Delivery(
            "B27",
            "10.json",
            lines(*new_york),
            {
                "gap": {"n": 1, "at": datetime(2024, 3, 10, 6, 59, 59, tzinfo=UTC)},
                "overlap": {"n": 1, "at": datetime(2024, 11, 3, 6, 30, tzinfo=UTC)},
                "plain": {"at": datetime(2024, 7, 1, 16, tzinfo=UTC)},
                "nepal": {"at": datetime(2024, 7, 1, 6, 15, tzinfo=UTC)},
                "old-zone": {"at": datetime(2024, 7, 1, 12, 25, 21, tzinfo=UTC)},
                "named": {"at": datetime(2024, 7, 1, 10, tzinfo=UTC)},
                "day": {"at": datetime(2024, 7, 1, 4, tzinfo=UTC)},
            },
            dict.fromkeys((1, 3, 5, 6, 12, 13, 14), NO_TIME),
        ),
    ]
    later = ("02.json", "04.json", "06.json", "09.json")
    return sorted(found, key=lambda delivery: delivery.name in later)


APART = {
    "source": {"format": "json"},
    "columns": {"id": "int not null", "p": "string"},
    "target": {"partition_by": ["p"]},
}
_NO_PARTITION = ("", "__HIVE_DEFAULT_PARTITION__", "x" * 254, "é" * 127, "/" * 85, "a\0")
apart_files = [
    Delivery("B0", "good.json", lines(row(1, p="a"), row(2)), {1: {"p": "a"}, 2: {"p": None}}),
    Delivery(
        "B37",
        "texts.json",
        lines(
            *[row(3501, p=text) for text in _NO_PARTITION],
            row(3502, p="x" * 253),
            row(3503, p="/" * 84),
        ),
        {3502: {"p": "x" * 253}, 3503: {"p": "/" * 84}},
        dict.fromkeys(range(1, 7), ("partition", "p")),
    ),
]
LAKES: dict[str, tuple[dict[str, Any], Any]] = {
    "json": (JSON, lambda now: json_files),
    "csv": (CSV, lambda now: csv_files),
    "text": (TEXT, lambda now: text_files),
    "parquet": (
        {"source": {"format": "parquet", "files": "landing/**"}, "columns": COLUMNS},
        lambda now: _columnar("parquet"),
    ),
    "orc": ({"source": {"format": "orc"}, "columns": COLUMNS}, lambda now: _columnar("orc")),
    "keyed": (KEYED, keyed_files),
    "partitioned": (APART, lambda now: apart_files),
}
WHAT = {
    "B1": "gzip cut in half, or without its last byte",
    "B2": "gzip with a flipped bit, a bad checksum, garbage behind it",
    "B3": "text named .gz, gzip not named so",
    "B4": "files without bytes, rows or lines",
    "B5": "torn last line",
    "B6": "NUL bytes, binary noise",
    "B7": "byte order mark, UTF-16",
    "B8": "Latin-1, broken UTF-8, in a header too",
    "B9": "CRLF, CR alone, mixed",
    "B10": "line ends in quotes, a quote that never closes",
    "B11": "CSV columns in another order",
    "B12": "CSV without header (one record, too), header again inside",
    "B13": "columns or cells too many or too few",
    "B14": "text, fractions, lists where numbers belong",
    "B15": "thousands separators, decimal comma, a dash for nothing",
    "B16": "overflow, 1e400, NaN, Infinity, -0.0",
    "B17": "no key, in other case, null, with blanks",
    "B18": "a JSON key twice",
    "B19": "lists, numbers, two objects, blank lines",
    "B20": "30,000 levels deep; 10,000 columns, in every format",
    "B21": "300 MB line, 5 GB in 5 MB of gzip, lines and values of 30 MB",
    "B22": "the same change in one file, in the next, in another run",
    "B23": "same key and sequence, other content",
    "B24": "older after newer, delete before insert, insert after delete",
    "B25": "event times of years 1, 1970, 9999, in 30 days, in ms and µs",
    "B26": "late by a second, an hour, a month",
    "B27": "clocks that skip and repeat an hour, 24:10, odd offsets, zones by name and by letters",
    "B28": "names: colon, newline, escape codes, %2F, [*], 255 bytes, two spellings of é, hidden",
    "B29": "k=1/ directories, a link to itself, a directory x.json, a pipe",
    "B30": "Parquet and ORC: truncated, wrong type, no key column, broken footer, int96",
    "B31": "21 key sets in one file",
    "B32": "10,000 files at once, then one of 2 GB",
    "B33": "yes and 1 as booleans, whole numbers that a double rounds, offsets in a timestamp_ntz, 1e400 as text",
    "B34": "nested values: infinity, NaN, numbers and BST as times, fields that the struct does not name",
    "B35": "CSV: quotes that RFC 4180 doesn't know, line ends in cells, empty texts, 25,000 columns",
    "B36": "half of a surrogate pair, Latin-1 in texts of Parquet and ORC",
    "B37": "texts that Delta stores as another partition, or no directory can bear",
    "B38": "floats in BYTE_STREAM_SPLIT",
}
