"""A file is read whole or parked whole."""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import random
import re
import zlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet
import pytest

from draindown.config.sources import FilesSource
from draindown.sources.files.columnar import COLUMNAR
from draindown.sources.files.container import FileBytes
from draindown.sources.files.inspection import LIMITS, Limits, Skipped, Unreadable, Verified, verify
from draindown.sources.objects import SourceFile
from tests import spark_orc
from tests.spark.mutants import mutant

ROWS = b"".join(b'{"id":%d,"name":"row %d"}\n' % (i, i * 7919) for i in range(3000))
GZ = gzip.compress(ROWS, mtime=0)
TABLE = pa.table({"id": list(range(1000)), "s": ["x"] * 1000})


def judge(
    path: Path, data: bytes | None, format: str = "json", limits: Limits = LIMITS, **more: Any
) -> Verified | Unreadable | Skipped:
    if data is not None:
        path.write_bytes(data)
    found = path.stat()
    source = FilesSource(files="x", format=format, **more)
    return verify(SourceFile(str(path), found.st_size, found.st_mtime_ns), source, limits)


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("a.json.gz", GZ[: len(GZ) // 2], "truncated"),
        ("a.json.gz", GZ[:-1], "truncated"),
        ("a.json.gz", GZ[:5], "truncated"),
        ("a.json.gz", flipped(GZ, len(GZ) // 2), "corrupt-gzip"),
        ("a.json.gz", flipped(GZ, len(GZ) - 6), "corrupt-gzip"),
        ("a.json.gz", GZ + b"garbage", "trailing-garbage"),
        ("a.json.gz", GZ + b"\x00" * 512, "trailing-garbage"),
        ("a.json.gz", GZ + GZ[:40], "truncated"),
        ("a.json.gz", GZ + b"\x1f\x8bxxxxxxxxxxxxxxxx", "corrupt-gzip"),
        ("a.json.gz", ROWS, "not-gzip"),
        ("a.json.gz", gzip.compress(GZ, mtime=0), "wrong-container"),
        ("a.json", GZ, "gzip-not-named"),
        ("a.json.GZ", GZ, "gzip-not-named"),
        ("a.json.bz2", ROWS, "unsupported-compression"),
        ("a.json", '{"id":1}\n'.encode("utf-16"), "not-utf-8"),
        ("a.json", '{"id":1}\n'.encode("utf-32"), "not-utf-8"),
        *(
            ("a.json", '{"id":1}\n'.encode(name), "not-utf-8")
            for name in ("utf-16-le", "utf-16-be", "utf-32-le")
        ),
        ("a.json", b"PAR1" + b"\x00" * 40, "wrong-container"),
        ("a.json", b"PK\x03\x04rest", "wrong-container"),
    ],
)
def test_a_broken_container_is_unreadable_with_its_reason(
    tmp_path: Path, name: str, data: bytes, reason: str
) -> None:
    result = judge(tmp_path / name, data)
    assert isinstance(result, Unreadable)
    assert result.reason == reason
    assert result.detail
    assert result.sha256 == hashlib.sha256(data).hexdigest()
    assert result.head == data[: 64 * 1024]


@pytest.mark.parametrize(
    ("name", "data", "lines", "blank"),
    [
        ("a.json", b"", 0, 0),
        ("a.json.gz", b"", 0, 0),
        ("a.json", ROWS, 3000, 0),
        ("a.json.gz", GZ, 3000, 0),
        ("a.json.gz", GZ + GZ, 6000, 0),
        ("a.json.gz", gzip.compress(b"", mtime=0) + GZ, 3000, 0),
        (
            "a.json.gz",
            gzip.compress(b'{"a"', mtime=0)
            + gzip.compress(b":1}\r", mtime=0)
            + gzip.compress(b"\n\n", mtime=0),
            2,
            1,
        ),
        ("a.json", b"\x00\x00\n\xff\xfa\n", 2, 0),
        ("a.json", b"\xef\xbb\xbf{}\n\n", 2, 1),
        ("a.json", b"[" * 20_000, 1, 0),
        ("ORC.csv", b"ORC,code\n", 1, 0),
    ],
)
def test_a_whole_container_is_read_whatever_its_bytes(
    tmp_path: Path, name: str, data: bytes, lines: int, blank: int
) -> None:
    result = judge(tmp_path / name, data)
    assert isinstance(result, Verified)
    assert (result.lines, result.blank, result.records) == (lines, blank, None)
    assert result.sha256 == hashlib.sha256(data).hexdigest()
    assert result.raw_bytes == len(gzip.decompress(data) if name.endswith(".gz") and data else data)


def test_any_mutation_of_a_gzip_file_ends_in_a_verdict_that_gzip_itself_agrees_with(
    tmp_path: Path,
) -> None:
    chance = random.Random(7)
    for _ in range(300):
        data = bytearray(GZ)
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        data = data[: chance.randrange(len(data)) if chance.random() < 0.3 else len(data)]
        result = judge(tmp_path / "m.json.gz", bytes(data))
        try:
            lines = gzip.decompress(bytes(data)).count(b"\n") if data else 0
        except (OSError, EOFError, zlib.error):
            assert isinstance(result, Unreadable)
        else:
            assert isinstance(result, Verified)
            assert result.lines == lines


def test_members_and_lines_may_end_at_any_chunk_border(tmp_path: Path) -> None:
    result = judge(
        tmp_path / "a.json.gz", GZ + gzip.compress(b"a\r\n") * 5, limits=Limits(chunk=7, head=5)
    )
    assert isinstance(result, Verified)
    assert result.lines == 3005


def test_a_bomb_is_parked_without_being_unpacked_whole(tmp_path: Path) -> None:
    packed = gzip.compress(b"a\n" * (20 * 1024**2), 1)
    result = judge(tmp_path / "bomb.json.gz", packed, limits=Limits(unpacked=10 * 1024**2))
    assert isinstance(result, Unreadable)
    assert result.reason == "too-large"


def test_blank_lines_packed_a_thousand_times_are_parked(tmp_path: Path) -> None:
    limits = Limits(blown_up=4 * 1024**2)
    result = judge(tmp_path / "bomb.json.gz", gzip.compress(b"\n" * (8 * 1024**2)), limits=limits)
    assert isinstance(result, Unreadable)
    assert (result.reason, "250 times" in result.detail) == ("too-large", True)
    assert isinstance(
        judge(tmp_path / "small.json.gz", gzip.compress(b"\n" * (2 * 1024**2)), limits=limits),
        Verified,
    )


@pytest.mark.parametrize("seed", [1156, 1196])
def test_a_codec_that_does_not_exist_parks_the_file(tmp_path: Path, seed: int) -> None:
    name, content = mutant("parquet", seed)  # asked too early, pyarrow ends the process here
    result = judge(tmp_path / name, content, "parquet")
    assert isinstance(result, Unreadable)
    assert result.reason == "bad-parquet"


def test_a_long_value_that_every_row_names_is_held_once(tmp_path: Path) -> None:
    value = pa.DictionaryArray.from_arrays(
        pa.array([0] * 6000, pa.int32()), pa.array(["z" * 1024**2])
    )
    path = tmp_path / "bomb.parquet"
    pyarrow.parquet.write_table(pa.table({"s": value}), path, compression="zstd")
    result = judge(path, None, "parquet")
    assert isinstance(result, Unreadable)
    assert (path.stat().st_size < 20_000, result.reason) == (True, "too-large")


@pytest.mark.parametrize("rows", [1, 2000])
@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_a_value_no_engine_can_hold_parks_its_file(tmp_path: Path, format: str, rows: int) -> None:
    path = tmp_path / f"a.{format}"
    for size, verdict in ((90_000, Verified), (300_000, Unreadable)):
        table = pa.table({"s": [{"in": [["x" * size]]}] + [{"in": [["y"]]}] * (rows - 1)})
        (pyarrow.parquet.write_table if format == "parquet" else pyarrow.orc.write_table)(
            table, path
        )
        result = judge(path, None, format, Limits(line=100_000))
        assert isinstance(result, verdict), result
    assert isinstance(result, Unreadable)
    assert result.reason == "record-too-long"


def test_a_file_with_a_line_no_engine_can_hold_is_parked(tmp_path: Path) -> None:
    lines = b"a\n" + b"b" * (5 * 1024**2) + b"\nc\n"
    result = judge(
        tmp_path / "a.json", lines, limits=Limits(line=3 * 1024**2), max_record_bytes=1024
    )
    assert isinstance(result, Unreadable)
    assert (result.reason, "line 2" in result.detail) == ("record-too-long", True)


def test_csv_keeps_its_header_and_sees_records_that_span_lines(tmp_path: Path) -> None:
    result = judge(tmp_path / "a.csv", b'\xef\xbb\xbfid,name\r\n1,"a\r\nb"\r\n', "csv")
    assert isinstance(result, Verified)
    assert (result.header, result.multiline, result.bom, result.lines) == ("id,name", True, True, 3)
    plain = judge(tmp_path / "b.csv", b"1,a\n2,b\n", "csv", header=False)
    assert isinstance(plain, Verified)
    assert (plain.header, plain.multiline, plain.lines) == (None, False, 2)


@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_columnar_files_count_their_rows(tmp_path: Path, format: str) -> None:
    path = tmp_path / f"a.{format}"
    writer = pyarrow.parquet.write_table if format == "parquet" else pyarrow.orc.write_table
    writer(TABLE, path)
    result = judge(path, None, format)
    assert isinstance(result, Verified)
    assert (result.records, result.lines, result.blank) == (1000, None, None)
    assert result.raw_bytes > 8000
    empty = judge(tmp_path / f"b.{format}", b"", format)
    assert isinstance(empty, Verified)
    assert empty.records == 0


@pytest.mark.parametrize("format", ["parquet", "orc"])
@pytest.mark.parametrize("damage", ["cut", "footer", "middle", "text"])
def test_broken_columnar_files_are_unreadable(tmp_path: Path, format: str, damage: str) -> None:
    path = tmp_path / f"a.{format}"
    options = {"compression": "zstd"}
    (pyarrow.parquet.write_table if format == "parquet" else pyarrow.orc.write_table)(
        TABLE, path, **options
    )
    good = path.read_bytes()
    broken = {
        "cut": good[: len(good) // 2],
        "footer": good[:-20] + b"\xff" * 20,
        "middle": good[:10] + b"\xff" * 300 + good[310:],
        "text": b'{"id": 1}\n',
    }[damage]
    result = judge(path, broken, format)
    assert isinstance(result, Unreadable)
    assert result.reason == ("wrong-container" if damage == "text" else f"bad-{format}")


NOON = pa.array([0], pa.time64("us"))
REFUSED: dict[str, tuple[pa.Array, str]] = {
    "time in us": (NOON, "x"),
    "time in ns": (pa.array([0], pa.time64("ns")), "x"),
    "time in ms": (pa.array([0], pa.time32("ms")), "x"),
    "half": (pa.array([1.0], pa.float16()), "x"),
    "uuid": (pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0" * 16], pa.binary(16))), "x"),
    "long decimal": (pa.array([1], pa.decimal256(39, 0)), "x"),
    "half in list in struct": (
        pa.array([{"a": [1.0]}], pa.struct({"a": pa.list_(pa.float16())})),
        "x.a",
    ),
    "time as key": (pa.MapArray.from_arrays([0, 1], NOON, pa.array(["v"])), "x.key_value.key"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_type_that_only_other_readers_know_parks_the_file(tmp_path: Path, case: str) -> None:
    values, column = REFUSED[case]
    pyarrow.parquet.write_table(pa.table({"id": [1], "x": values}), tmp_path / "a.parquet")
    result = judge(tmp_path / "a.parquet", None, "parquet")
    assert isinstance(result, Unreadable)
    assert result.reason == "unsupported-type"
    assert f"column {column}" in result.detail


def test_an_orc_union_parks_the_file(tmp_path: Path) -> None:
    union = pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1]), pa.array(["a"])])
    pyarrow.orc.write_table(pa.table({"x": union}), tmp_path / "a.orc")
    result = judge(tmp_path / "a.orc", None, "orc")
    assert isinstance(result, Unreadable)
    assert (result.reason, "column x " in result.detail) == ("unsupported-type", True)


@pytest.mark.parametrize("format", ["parquet", "orc"])
@pytest.mark.parametrize("names", [("id", "id"), ("id", "ID")])
@pytest.mark.parametrize("nested", [False, True])
def test_two_columns_of_one_name_park_the_file(
    tmp_path: Path, format: str, names: tuple[str, str], nested: bool
) -> None:
    columns = [pa.array([1]), pa.array([2])]
    if nested:
        table = pa.table({"x": pa.StructArray.from_arrays(columns, names=list(names))})
    else:
        table = pa.Table.from_arrays(columns, names=list(names))
    path = tmp_path / f"a.{format}"
    (pyarrow.parquet.write_table if format == "parquet" else pyarrow.orc.write_table)(table, path)
    result = judge(path, None, format)
    assert isinstance(result, Unreadable)
    assert result.reason == "duplicate-column"
    assert ("x." if nested else "") + names[1] in result.detail


def test_columns_of_many_types_are_read(tmp_path: Path) -> None:
    kinds = [
        *(
            pa.uint64(),
            pa.uint8(),
            pa.decimal128(38, 9),
            pa.decimal256(38, 0),
            pa.timestamp("ns"),
            pa.date32(),
        ),
        *(
            pa.large_string(),
            pa.binary(5),
            pa.duration("us"),
            pa.dictionary(pa.int8(), pa.string()),
        ),
        pa.list_(pa.struct({"id": pa.int8()})),
    ]
    table = pa.table(
        {"id": pa.nulls(3, pa.int8())}
        | {f"c{at}": pa.nulls(3, kind) for at, kind in enumerate(kinds)}
    )
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    result = judge(tmp_path / "a.parquet", None, "parquet")
    assert isinstance(result, Verified), result
    assert result.records == 3


FAR = datetime(9999, 12, 31)  # nanoseconds, as which pyarrow reads all times of ORC, end in 2262
TIME = pa.timestamp("us")


@pytest.mark.parametrize("where", ["column", "struct", "list of structs", "list", "map"])
def test_an_orc_file_with_a_time_that_only_spark_can_read_is_taken(
    tmp_path: Path, where: str
) -> None:
    held: dict[str, tuple[Any, pa.DataType]] = {
        "column": (FAR, TIME),
        "struct": ({"at": FAR, "s": "y" * 50}, pa.struct([("at", TIME), ("s", pa.string())])),
        "list of structs": (
            [{"at": FAR, "s": "y" * 50}],
            pa.list_(pa.struct([("at", TIME), ("s", pa.string())])),
        ),
        "list": ([FAR], pa.list_(TIME)),
        "map": ([("k", FAR)], pa.map_(pa.string(), TIME)),
    }
    value, kind = held[where]
    table = pa.table(
        {"id": [1, 2, 3], "s": ["x" * 20] * 3, "x": pa.array([value, None, value], kind)}
    )
    pyarrow.orc.write_table(table, tmp_path / "a.orc")
    result = judge(tmp_path / "a.orc", None, "orc")
    assert isinstance(result, Verified), result
    texts = 60 + (100 if "struct" in where else 0)
    assert (result.records, result.raw_bytes >= texts + 3 * (8 + 8)) == (3, True)
    result = judge(
        tmp_path / "a.orc", None, "orc", replace(LIMITS, line=40 if "struct" in where else 10)
    )
    assert isinstance(result, Unreadable) and result.reason == "record-too-long"


@pytest.mark.parametrize("why", ["zone", "wide", "nothing else"])
def test_a_time_that_no_copy_can_hold_parks_its_orc_file_with_a_reason_of_its_own(
    tmp_path: Path, why: str
) -> None:
    kind = pa.timestamp("us", "UTC") if why == "zone" else TIME
    other: dict[str, Any] = {
        f"c{n}": [n] for n in range({"zone": 1, "wide": 600, "nothing else": 0}[why])
    }
    for at, reason in ((FAR, "unsupported-time"), (datetime(2024, 7, 1), None)):
        pyarrow.orc.write_table(pa.table({"at": pa.array([at], kind), **other}), tmp_path / "a.orc")
        result = judge(tmp_path / "a.orc", None, "orc")
        assert (result.reason if isinstance(result, Unreadable) else None) == reason


def test_times_of_orc_that_spark_wrote_are_the_instants_that_they_were(tmp_path: Path) -> None:
    """By the zone of the writer, which a stripe's footer names. In an hour that its clocks show
    twice they are lost.
    """
    path, noon = tmp_path / "a.orc", datetime(2026, 7, 1, 16, tzinfo=UTC)
    path.write_bytes(spark_orc.NOON)
    result, form = judge(path, None, "orc"), COLUMNAR["orc"]
    assert isinstance(result, Verified) and form.needs_copy(str(path)), (
        "Spark reads them by the clocks of its own zone"
    )
    (rows,) = form.blocks(str(path))
    rows.validate(full=True)
    held = {
        "id": [0, 1],
        "at": [noon, noon + timedelta(hours=1)],
        "st": [[{"m": [(noon, at)]}] for at in (0, 1)],
    }
    assert rows.to_pydict() == held and rows.schema == form.schema(str(path))
    path.write_bytes(spark_orc.TWICE)
    result = judge(path, None, "orc")
    assert isinstance(result, Unreadable) and result.reason == "unsupported-time"


def test_a_file_that_changes_under_the_pass_is_left_for_the_next_run(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(GZ[:100])
    listed = SourceFile(str(path), 100, path.stat().st_mtime_ns)
    path.write_bytes(GZ)
    result = verify(listed, FilesSource(files="x", format="json"))
    assert isinstance(result, Skipped)
    assert result.finding.kind == "unsettled"


def test_a_file_that_cannot_be_opened_is_skipped_with_advice(tmp_path: Path) -> None:
    result = verify(
        SourceFile(str(tmp_path / "gone.json"), 1, 1), FilesSource(files="x", format="json")
    )
    assert isinstance(result, Skipped)
    assert (result.finding.kind, bool(result.finding.next), result.trouble) == ("ignored", True, "")


def test_memory_does_not_follow_the_size_of_the_file(tmp_path: Path) -> None:
    import tracemalloc

    path = tmp_path / "big.json"
    with path.open("wb") as out:
        for _ in range(40):
            out.write(b'{"id":1,"text":"some words"}\n' * 36_000)
    assert path.stat().st_size > 40_000_000
    tracemalloc.start()
    result = judge(path, None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(result, Verified)
    assert result.lines == 40 * 36_000
    assert peak < 12 * 1024**2


class _Fails:
    """A Parquet reader that raises this, as pyarrow does where the machine fails and not the
    file.
    """

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __call__(self, *_: Any) -> Any:
        raise self._error


TROUBLES = [
    *(OSError(number, os.strerror(number)) for number in (errno.EIO, errno.ESTALE, errno.EACCES)),
    MemoryError(),
    pa.ArrowMemoryError("malloc of size 1073741824 failed"),
]


@pytest.mark.parametrize("format", ["parquet", "orc"])
@pytest.mark.parametrize(
    "error", TROUBLES, ids=["EIO", "ESTALE", "EACCES", "memory", "memory of arrow"]
)
def test_a_good_file_that_the_machine_fails_to_read_is_neither_parked_nor_fatal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, error: BaseException
) -> None:
    path = tmp_path / "a"
    pyarrow.parquet.write_table(TABLE, path) if format == "parquet" else pyarrow.orc.write_table(
        TABLE, path
    )
    assert isinstance(judge(path, None, format), Verified)
    monkeypatch.setattr(type(COLUMNAR[format]), "measured", _Fails(error))
    result = judge(path, None, format)
    assert isinstance(result, Skipped) and result.trouble
    assert (result.finding.kind, result.finding.subject) == ("unread", str(path))


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
@pytest.mark.parametrize("error", TROUBLES[:4], ids=["EIO", "ESTALE", "EACCES", "memory"])
def test_a_good_text_that_the_machine_fails_to_read_is_neither_parked_nor_fatal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: BaseException
) -> None:
    monkeypatch.setattr(FileBytes, "chunks", _Fails(error))
    result = judge(tmp_path / name, GZ if name.endswith("gz") else ROWS)
    assert isinstance(result, Skipped) and result.finding.kind == "unread"


@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_a_torn_file_of_columns_is_still_unreadable(tmp_path: Path, format: str) -> None:
    path = tmp_path / "a"
    pyarrow.parquet.write_table(TABLE, path) if format == "parquet" else pyarrow.orc.write_table(
        TABLE, path
    )
    result = judge(path, path.read_bytes()[:-20], format)
    assert isinstance(result, Unreadable) and result.reason == f"bad-{format}"


_WESTERN = "it is text in WINDOWS-1252: if that is meant, iconv -f WINDOWS-1252 -t UTF-8 FILE"
_UNKNOWN = (
    "its bytes do not show its encoding: ask who sends it, then iconv -f ENCODING -t UTF-8 FILE"
)


@pytest.mark.parametrize(
    ("header", "encoding", "way"),
    [
        ("id,Straße,Größe", "latin-1", _WESTERN),
        ("id,Betrag €,Temp. °C", "cp1252", _WESTERN),
        ("id,prénom,créée le", "cp1252", _WESTERN),
        ("id,日本語,価格", "shift-jis", _UNKNOWN),
        ("id,日本語,価格", "euc-jp", _UNKNOWN),
        ("id,цена,имя", "cp1251", _UNKNOWN),
        ("id,价格", "gb18030", _UNKNOWN),
    ],
)
def test_a_header_in_another_encoding_is_parked_with_what_its_bytes_show(
    tmp_path: Path, header: str, encoding: str, way: str
) -> None:
    for name, pack in (("a.csv", bytes), ("a.csv.gz", gzip.compress)):
        result = judge(tmp_path / name, pack(f"{header}\n1,2,3\n".encode(encoding)), "csv")
        assert isinstance(result, Unreadable) and result.reason == "header-not-utf-8"
        assert result.detail == f"its header is not UTF-8; {way}"


@pytest.mark.parametrize("form", ["csv", "text", "json"])
@pytest.mark.parametrize(
    "encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"]
)
def test_wide_text_is_parked_with_its_encoding_named(
    tmp_path: Path, form: str, encoding: str
) -> None:
    data = "id,Straße\n1,2\n".encode(encoding)
    result = judge(tmp_path / "a", data, form)
    assert isinstance(result, Unreadable) and result.reason == "not-utf-8"
    (named,) = re.findall(r"iconv -f (\S+) -t UTF-8", result.detail)
    assert data.decode(named) == "id,Straße\n1,2\n"


def test_header_and_rows_may_differ_in_their_encoding(tmp_path: Path) -> None:
    reverse = "id,Straße\n".encode("latin-1") + "1,Allée\n".encode()
    result = judge(tmp_path / "a.csv", reverse, "csv")
    assert isinstance(result, Unreadable) and result.reason == "header-not-utf-8"
    assert "and its rows are: have the header written as UTF-8" in result.detail
    good = judge(tmp_path / "b.csv", "id,Straße\n".encode() + "1,Allée\n".encode("latin-1"), "csv")
    assert isinstance(good, Verified) and good.header == "id,Straße", "rows are refused one by one"
    bare = judge(tmp_path / "c.csv", "1,Allée\n".encode("latin-1"), "csv", header=False)
    assert isinstance(bare, Verified), "without a header, the first line is a row"


@pytest.mark.parametrize(
    "data",
    [b"", b"\x00", b"\x00\x00\x00\x00", b"a\x00b\n", b"\x00\x00\n\x00\x00\n", "a\ufffd\n".encode()],
)
def test_a_nul_is_a_character_of_text(tmp_path: Path, data: bytes) -> None:
    assert isinstance(judge(tmp_path / "a", data, "text"), Verified)
