"""Bad JSON and bad files: what is refused, where it came from, and that the rest lands. B1-B22,
B28, B29.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from draindown.audit.recount import audit
from draindown.base.exits import Exit

pytestmark = pytest.mark.full  # its files are drained in one batch, which all of its tests share
COLUMNS = {
    "id": "int not null",
    "i": "int",
    "b": "bigint",
    "d": "double",
    "f": "float",
    "dec": "decimal(38,3)",
    "flag": "boolean",
    "day": "date",
    "at": "timestamp",
    "plain": "timestamp_ntz",
    "s": "string",
    "bytes": "binary",
    "arr": "array<int>",
    "m": "map<string,int>",
    "st": "struct<x: int, y: string>",
    "money": "array<decimal(20,2)>",
}
RULES = {
    "positive": "i is null or i >= 0",
    "known": "nullif(s, 'null') != 'never' or s is null",
    "casts": "s not like 'cast:%' or s is null or cast(substring(s, 6) as int) > 0",
    "index": "s not like 'index' or s is null or arr[7] = 0",
    "divides": "s not like 'divide' or s is null or 10 / b > 0",
}
GOOD = None
MALFORMED, TYPE = ("malformed", None), lambda field: ("type", field)


@dataclass(frozen=True)
class Case:
    """One file: its bytes, and for each position what became of the record (GOOD: an id that
    lands).
    """

    content: bytes
    refused: Mapping[int, tuple[str, str | None]]
    good: frozenset[int]
    blank: int = 0


def lines(*records: tuple[bytes, Any], end: bytes = b"\n") -> Case:
    """A file of records with what is expected of each: an id that lands, a refusal, or `...` for a
    blank line.
    """
    wanted = dict(enumerate((expected for _, expected in records), 1))
    return Case(
        end.join(raw for raw, _ in records) + end,
        {at: expected for at, expected in wanted.items() if isinstance(expected, tuple)},
        frozenset(expected for expected in wanted.values() if isinstance(expected, int)),
        sum(expected is ... for expected in wanted.values()),
    )


def fields(**values: Any) -> bytes:
    return json.dumps(values).encode()


def clash(field: str, value: Any) -> tuple[bytes, tuple[str, str]]:
    """A record in which one field is not what the contract says."""
    return fields(id=1, **{field: value}), TYPE(field)


DEEP = b'{"id":1,"s":' + b"[" * 20_000 + b"1" + b"]" * 20_000 + b"}"
WIDE = json.dumps({"id": 701, **{f"c{i}": i for i in range(10_000)}}).encode()
CASES = {
    "malformed": lines(
        (b'{"id":1,', MALFORMED),
        (fields(id=101), 101),
        (b"[]", MALFORMED),
        (b'[{"id":1}]', MALFORMED),
        (b"5", MALFORMED),
        (b'"x"', MALFORMED),
        (b"null", MALFORMED),
        (b"", ...),
        (b" \t ", ...),
        (b"{'id':1}", MALFORMED),
        (b'{"id":NaN}', MALFORMED),
        (b'{"id":1,"d":Infinity}', MALFORMED),
        (b'{"id":1} {"id":2}', MALFORMED),
        (b'{"id":1}{"id":2}', MALFORMED),
        (b'{"id":1},{"id":2}', MALFORMED),
        (b'{"id":1}],[{"id":2}', MALFORMED),
        (b'{"id":1}]', MALFORMED),
        (b'{"id":1}}', MALFORMED),
        (b'{"id":1} x', MALFORMED),
        (b'  {"id":102}  ', 102),
        (b"not json at all", MALFORMED),
        (b'{"id":1,"s":"unescaped \x01 control"}', MALFORMED),
    ),
    "twice": lines(
        (b'{"id":1,"id":1}', MALFORMED),
        (b'{"id":1,"s":"a","s":"b"}', MALFORMED),
        (b'{"id":1,"other":"a","other":"b"}', MALFORMED),
        (b'{"id":1,"other":{},"other":{}}', MALFORMED),
        (b'{"id":201,"ID":1}', 201),
    ),
    "bytes": lines(
        (b'{"id":1,"s":"\x00"}', MALFORMED),
        (b"\x00\x00\x00", MALFORMED),
        (b'{"id":1,"s":"\xff\xfe"}', MALFORMED),
        (b'{"id":1,"s":"caf\xe9"}', MALFORMED),
        (bytes(range(128, 160)), MALFORMED),
        ('{"id":301,"s":"café 🛫"}'.encode(), 301),
        (b'{"id":302,"s":"\\u0000"}', 302),
    ),
    "numbers": lines(
        clash("i", 4.7),
        clash("i", "4.7"),
        clash("i", 2**31),
        clash("i", "1,000"),
        clash("i", "-"),
        clash("i", [1]),
        clash("i", {"a": 1}),
        clash("i", True),
        clash("b", 2**63),
        (b'{"id":1,"d":1e400}', TYPE("d")),
        clash("d", "NaN"),
        clash("d", "Infinity"),
        clash("d", "1,5"),
        clash("f", 1e39),
        clash("dec", "1,5"),
        clash("dec", "1,234.5"),
        clash("dec", "NaN"),
        (b'{"id":1,"dec":' + b"9" * 36 + b"}", TYPE("dec")),
        (b'{"id":401,"dec":1234567890123456789012345678901234.567}', 401),
        (b'{"id":402,"dec":"1234567890123456789012345678901234.567"}', 402),
        (b'{"id":403,"d":-0.0,"f":-0.0}', 403),
        (b'{"id":404,"i":"12","b":9223372036854775807,"d":1.5,"f":2}', 404),
        (b'{"id":405,"money":[1234567890123456.78]}', 405),
        (b'{"id":406,"s":1.10}', 406),
    ),
    "times": lines(
        clash("day", "2024-02-30"),
        clash("day", "01/02/2024"),
        clash("day", 19782),
        clash("day", "2024"),
        clash("day", "2024-05"),
        clash("at", 1700000000),
        clash("at", 1700000),
        clash("at", 2024),
        clash("at", "1700000000000"),
        clash("at", "12:30"),
        clash("at", "T12:30:00"),
        clash("at", "2024-01-01T23:59:60"),
        clash("at", "2024-01-01T24:10:00"),
        clash("at", "today"),
        clash("plain", "12:30"),
        clash("at", "2024-03-10T02:30:00"),
        clash("at", "2024-11-03T01:30:00"),
        (fields(id=501, at="2024-07-01T12:00:00"), 501),
        (fields(id=502, at="2024-07-01T12:00:00+05:45"), 502),
        (fields(id=503, day="2024-02-29", plain="2024-07-01 12:00:00"), 503),
    ),
    "nested": lines(
        clash("arr", ["x"]),
        clash("arr", "x"),
        clash("arr", 5),
        clash("arr", {"a": 1}),
        clash("m", {"a": "x"}),
        clash("m", [1]),
        clash("st", {"x": "no"}),
        clash("st", [1]),
        (b'{"id":1,"st":{"x":1,"x":2}}', TYPE("st")),
        clash("arr", "[1] and more"),
        clash("arr", "[1]]"),
        clash("flag", "maybe"),
        clash("flag", [True]),
        clash("money", ["x"]),
        (
            fields(id=601, arr=[1, None], m={"a": 1, "b": None}, st={"x": 1, "y": "z"}, flag=True),
            601,
        ),
        (fields(id=602, arr=[], m={}, st={}, flag=None), 602),
    ),
    "fields": lines(
        (WIDE, 701),
        (b"{}", ("not_null", "id")),
        (fields(id=None), ("not_null", "id")),
        (fields(ID=1), ("not_null", "id")),
        (fields(**{" id ": 1}), ("not_null", "id")),
        (fields(id=702, new=1.5, other="x", deep={"a": [1]}, none=None), 702),
        (DEEP, MALFORMED),
        (fields(id=703), 703),
    ),
    "rules": lines(
        (fields(id=1, i=-1), ("rule:positive", None)),
        (fields(id=1, s="null"), ("rule:known", None)),
        (fields(id=1, s="never"), ("rule:known", None)),
        (fields(id=1, s="cast:x"), ("rule:casts", None)),
        (fields(id=1, s="index", arr=[1]), ("rule:index", None)),
        (fields(id=1, s="divide", b=0), ("rule:divides", None)),
        (fields(id=801, s="cast:1"), 801),
    ),
    "large": lines(
        (fields(id=901), 901),
        (fields(id=1, s="x" * 300_000), ("too_large", None)),
        (fields(id=1, s="é" * 150_000), ("too_large", None)),
        (fields(id=902), 902),
    ),
    "crlf": lines(
        (fields(id=1001), 1001), (b"x", MALFORMED), (b"", ...), (fields(id=1002), 1002), end=b"\r\n"
    ),
    "cr": lines((fields(id=1011), 1011), (b"x", MALFORMED), (fields(id=1012), 1012), end=b"\r"),
    "mixed": Case(
        b'{"id":1021}\r\n{"id":1022}\r{"id":1023}\nx', {4: MALFORMED}, frozenset({1021, 1022, 1023})
    ),
    "torn": Case(fields(id=1031) + b'\n{"id":1,"s":"to', {2: MALFORMED}, frozenset({1031})),
    "bom": Case(b"\xef\xbb\xbf" + fields(id=1041) + b"\nx\n", {2: MALFORMED}, frozenset({1041})),
    "only-bom": Case(b"\xef\xbb\xbf", {}, frozenset()),
    "empty": Case(b"", {}, frozenset()),
    "blank": Case(b"\n\n \n", {}, frozenset(), blank=3),
    "[*]{}?% ü 名.json": lines((fields(id=1101), 1101), (b"x", MALFORMED)),
    "%2F%20+#&;=,'\"$\\.json": lines((fields(id=1102), 1102), (b"x", MALFORMED)),
    "n" * 250 + ".json": lines((fields(id=1103), 1103), (b"x", MALFORMED)),
    "e\u0301.json": lines((fields(id=1104), 1104)),
    "\u00e9.json": lines((fields(id=1105), 1105)),
}
ZIPPED = {
    "members.gz": (
        gzip.compress(fields(id=1201) + b"\n") + gzip.compress(b"x\n" + fields(id=1202)),
        Case(b"", {2: MALFORMED}, frozenset({1201, 1202})),
    ),
    "empty.gz": (gzip.compress(b""), Case(b"", {}, frozenset())),
}
_WHOLE = gzip.compress(b'{"id":1}\n' * 10_000, mtime=0)
PARKED = {
    "half.gz": (_WHOLE[: len(_WHOLE) // 2], "truncated"),
    "crc.gz": (_WHOLE[:-8] + b"\0\0\0\0" + _WHOLE[-4:], "corrupt-gzip"),
    "trailing.gz": (_WHOLE + b"garbage", "trailing-garbage"),
    "text.gz": (b'{"id":1}\n', "not-gzip"),
    "zipped.json": (_WHOLE, "gzip-not-named"),
    "utf16.json": ('{"id":1}\n'.encode("utf-16"), "not-utf-8"),
    "parquet.json": (b"PAR1" + bytes(100), "wrong-container"),
}
CASES |= {name: case for name, (_, case) in ZIPPED.items()}


def content_of(name: str) -> bytes:
    return ZIPPED[name][0] if name in ZIPPED else CASES[name].content


@pytest.fixture(scope="module")
def drained(landing: Callable[[Mapping[str, Any]], Any]) -> Any:
    """Every case as a file of its own, drained at once; then drained again, which must find nothing
    to do.
    """
    here = landing(
        {
            "source": {
                "format": "json",
                "timezone": "America/New_York",
                "max_record_bytes": "256kb",
            },
            "columns": COLUMNS,
            "rules": RULES,
        }
    )
    for name in CASES:
        here.land(name, content_of(name))
    for name, (content, _) in PARKED.items():
        here.land(name, content)
    for name in ("a:b.json", "line\nend.json", "_hidden.json", ".dot.json", "being-written.tmp"):
        here.land(name, fields(id=1))
    (here.landing / "directory.json").mkdir()
    os.mkfifo(here.landing / "pipe.json")
    (here.landing / "loop.json").symlink_to(here.landing / "loop.json")
    for name, when in {"old": 0, "future": 4_000_000_000}.items():
        os.utime(here.land(name, fields(id=1301 if name == "old" else 1302)), (when, when))
    here.first, here.code = here.attempt_batches()
    here.table = {row["id"]: row for row in here.rows()}
    here.quarantined = here.refused()
    return here


def test_the_run_is_green_and_its_sums_close(drained: Any) -> None:
    assert drained.code == Exit.DONE, drained.first.error
    sums = drained.sums()
    assert sums["blank"] == sum(case.blank for case in CASES.values())
    assert sums["quarantined"] == sum(len(case.refused) for case in CASES.values())
    assert sums["applied"] == sum(len(case.good) for case in CASES.values()) + 2


@pytest.mark.parametrize(
    "name", CASES, ids=lambda name: name[:12].encode("ascii", "replace").decode()
)
def test_each_record_meets_its_fate(drained: Any, name: str) -> None:
    case = CASES[name]
    found = {
        at: (row["reason"], row["field"])
        for (file, at), row in drained.quarantined.items()
        if file == name
    }
    assert found == case.refused
    assert case.good <= set(drained.table)


def test_nothing_else_landed(drained: Any) -> None:
    assert set(drained.table) == {one for case in CASES.values() for one in case.good} | {
        1301,
        1302,
    }


def test_refused_records_are_kept_as_they_came(drained: Any) -> None:
    for name in ("malformed", "twice", "numbers", "times", "nested", "rules"):
        raw = CASES[name].content.split(b"\n")
        for at in CASES[name].refused:
            row = drained.quarantined[name, at]
            assert (row["raw"].encode(), row["raw_bytes"], row["raw_length"]) == (
                raw[at - 1],
                None,
                len(raw[at - 1]),
            )
            assert row["origin"]["input"] == str(drained.landing / name)
            assert row["run_id"] == "run 1"


def test_what_is_no_text_is_kept_as_bytes(drained: Any) -> None:
    raw = CASES["bytes"].content.split(b"\n")
    assert drained.quarantined["bytes", 2]["raw"] == "\0\0\0"
    for at in (3, 4, 5):
        row = drained.quarantined["bytes", at]
        assert row["raw_bytes"] == raw[at - 1]
        assert row["detail"] == "not valid UTF-8"


def test_a_record_that_is_too_large_keeps_its_beginning(drained: Any) -> None:
    row = drained.quarantined["large", 3]
    assert row["raw_length"] == len(CASES["large"].content.split(b"\n")[2])
    assert len(row["raw_bytes"]) == 64 * 1024
    assert "at most 262144" in row["detail"]


def test_the_reason_says_what_is_wrong(drained: Any) -> None:
    details = {at: drained.quarantined["numbers", at]["detail"] for at in (1, 3, 9, 15)}
    assert details == {
        1: "4.7 is no int",
        3: "2147483648 is no int",
        9: "9223372036854775808 is no bigint",
    } | {15: "1,5 is no decimal(38,3)"}
    twice = {drained.quarantined["twice", at]["detail"] for at in CASES["twice"].refused}
    assert twice == {"a key stands twice"}
    assert drained.quarantined["malformed", 1]["detail"] == "not one JSON object"


def test_numbers_are_exact(drained: Any) -> None:
    exact = Decimal("1234567890123456789012345678901234.567")
    assert drained.table[401]["dec"] == drained.table[402]["dec"] == exact
    assert str(drained.table[403]["d"]) == str(drained.table[403]["f"]) == "0.0"
    assert (drained.table[404]["i"], drained.table[404]["b"]) == (12, 2**63 - 1)
    assert drained.table[405]["money"] == [Decimal("1234567890123456.78")]
    assert Decimal(drained.table[406]["s"]) == Decimal("1.1")


def test_times_without_zone_are_in_the_sources_zone(drained: Any) -> None:
    assert drained.table[501]["at"].isoformat() == "2024-07-01T16:00:00+00:00"
    assert drained.table[502]["at"].isoformat() == "2024-07-01T06:15:00+00:00"
    assert drained.table[503]["plain"].isoformat() == "2024-07-01T12:00:00"


def test_nested_values_are_whole(drained: Any) -> None:
    assert drained.table[601]["arr"] == [1, None]
    assert dict(drained.table[601]["m"]) == {"a": 1, "b": None}
    assert drained.table[601]["st"] == {"x": 1, "y": "z"}
    assert drained.table[602]["arr"] == []


def test_unknown_fields_are_rescued_as_text(drained: Any) -> None:
    rescued = json.loads(drained.table[702]["_rescued_data"])
    assert {name: value for name, value in rescued.items() if value is not None} == {
        "new": "1.5",
        "other": "x",
        "deep": '{"a":[1]}',
    }
    assert json.loads(drained.table[201]["_rescued_data"]) == {"ID": "1"}
    assert len(json.loads(drained.table[701]["_rescued_data"])) == 10_000
    assert drained.table[703]["_rescued_data"] is None


def test_unreadable_files_are_parked_alone(drained: Any) -> None:
    assert drained.parked() == {name: reason for name, (_, reason) in PARKED.items()}
    assert drained.first.drain.kept_out == len(PARKED)


def test_what_is_no_file_to_read_is_named(drained: Any) -> None:
    told = {Path(finding.subject).name: finding.detail for finding in drained.first.findings}
    assert "colon or a control character" in told["a:b.json"]
    assert "colon or a control character" in told["line\\nend.json"]
    assert "hidden" in told["_hidden.json"]
    assert "hidden" in told[".dot.json"]
    assert "temporary" in told["being-written.tmp"]
    assert "directory" in told["directory.json"]
    assert "pipe" in told["pipe.json"]
    assert "loop.json" in told


def test_the_next_run_is_clean(drained: Any) -> None:
    report, code = drained.attempt_batches()
    assert (code, report.outcome, report.drain.kept_out) == (Exit.DONE, "idle", 0)
    assert audit(drained.spec, "f", root=drained.home).residues == []
    assert len(drained.rows("1")) == len(drained.table)


KEYED = {
    "source": {"format": "json"},
    "columns": {
        "k": "string not null",
        "at": "int not null",
        "n": "int not null",
        "gone": "boolean",
    },
    "rules": {"even": "n % 2 = 0"},
    "target": {"keys": ["k"], "sequence_by": ["at"], "apply_as_deletes": "gone"},
}


@pytest.fixture
def keyed(landing: Callable[[Mapping[str, Any]], Any]) -> Any:
    return landing(KEYED)


def test_a_delete_needs_keys_and_sequence_only(keyed: Any) -> None:
    rows = [{"k": k, "at": 1, "n": 2} for k in "abcd"]
    rows += [{"k": "a", "at": 2, "gone": True}, {"k": "b", "at": 2, "gone": True, "n": "x"}]
    rows += [
        {"k": "c", "at": 2, "gone": True, "n": 1},
        {"k": "d", "gone": True},
        {"k": "d", "at": "x", "gone": True},
    ]
    rows += [
        {"at": 2, "gone": True},
        {"k": "d", "at": 2, "gone": "perhaps", "n": 2},
        {"k": "d", "at": 2, "n": 3},
    ]
    keyed.land("one", "\n".join(map(json.dumps, rows)).encode())
    report, code = keyed.attempt_batches()
    assert code == Exit.DONE, report.error
    assert [row["k"] for row in keyed.rows()] == ["d"]
    assert {at: (row["reason"], row["field"]) for (_, at), row in keyed.refused().items()} == {
        8: ("not_null", "at"),
        9: ("type", "at"),
        10: ("not_null", "k"),
        11: ("type", "gone"),
        12: ("rule:even", None),
    }
    keyed.sums()


def test_a_file_that_changes_after_it_was_read_ends_red_once_and_is_named(keyed: Any) -> None:
    keyed.land("grows", b'{"k":"g","at":1,"n":2}\n')
    assert keyed.attempt_batches()[1] == Exit.DONE
    keyed.land("grows", b'{"k":"g","at":1,"n":2}\n{"k":"h","at":1,"n":2}\n')
    keyed.land("beside", b'{"k":"i","at":1,"n":2}\n')
    report, code = keyed.attempt_batches()
    assert code == Exit.NEEDS_PERSON
    assert report.error["code"] == "input-changed"
    assert "grows" in report.error["found"]
    assert keyed.parked() == {"grows": "changed"}
    assert {row["k"] for row in keyed.rows()} >= {"g", "i"}
    assert "h" not in {row["k"] for row in keyed.rows()}
    assert keyed.attempt_batches()[1] == Exit.DONE
    keyed.sums()


class _Died(Exception):
    pass


@pytest.mark.long
@pytest.mark.parametrize("what", ["changed", "vanished"])
def test_bytes_that_differ_at_the_replay_are_refused(keyed: Any, what: str) -> None:
    first = b'{"k":"' + what.encode() + b'","at":1,"n":2}\n'
    path = keyed.land(f"pinned-{what}", first)

    def die(step: str) -> None:
        if step == "read":
            raise _Died

    assert keyed.attempt_batches(reached=die)[1] == Exit.CRASH
    if what == "changed":
        keyed.land(path.name, first.replace(b"2", b"4"))
    else:
        path.unlink()
    report, code = keyed.attempt_batches()
    assert (code, report.error["code"]) == (Exit.NEEDS_PERSON, "input-changed")
    assert path.name in report.error["found"]
    assert what not in {row["k"] for row in keyed.rows()}
    path.write_bytes(first)
    report, code = keyed.attempt_batches()
    if code != Exit.DONE:  # parked as changed by the drain between: told once, then clean
        report, code = keyed.attempt_batches()
    assert code == Exit.DONE, report.error
    assert what in {row["k"] for row in keyed.rows()}
    keyed.sums()


def test_a_line_above_the_hard_cap_parks_its_file(keyed: Any) -> None:
    big = b'{"k":"big","at":1,"n":2,"x":"' + b"x" * (34 * 1024**2) + b'"}\n'
    keyed.land("big.gz", gzip.compress(big, 1))
    keyed.land("small", b'{"k":"small","at":1,"n":2}\n')
    assert keyed.attempt_batches()[1] == Exit.DONE
    assert keyed.parked()["big.gz"] == "record-too-long"
    assert "small" in {row["k"] for row in keyed.rows()}
