"""Cells of delimited records against Python's strict reader, and the drain's reading of them
against the audit's.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from draindown.audit.raw import TextFile, cells_of
from draindown.config.dialect import Dialect
from draindown.spark.sources.folded import lines_of, split_records
from tests.csvlines import SOURCES, random_lines, strict


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("seed", [4180])
def test_a_record_is_what_pythons_strict_reader_reads_or_none(name: str, seed: int) -> None:
    dialect, read = SOURCES[name].dialect, 0
    for line in random_lines(seed, 4000, dialect, "\r\n", "\n", "\r"):
        cells = dialect.cells(line)
        if cells is not None and line:
            wanted = strict(line, dialect)
            # in a cell without quotes Python's reader takes the escape away
            null = dialect.null.replace(dialect.escape, "") if dialect.escape else dialect.null
            assert [null if cell is None else cell for cell in cells] == wanted, line
            read += any(mark in line for mark in dialect.marks)
    assert read > 100 or not dialect.marks


def test_only_a_quote_or_a_backslash_makes_a_line_no_record() -> None:
    for source in SOURCES.values():
        for line in random_lines(5, 1000, source.dialect):
            if not any(mark in line for mark in source.dialect.marks):
                assert source.dialect.cells(line) is not None


@pytest.mark.parametrize("name", SOURCES)
def test_the_audit_reads_the_same_cells_by_a_code_of_its_own(name: str) -> None:
    source = SOURCES[name]
    for line in random_lines(11, 4000, source.dialect, "\r\n", "\n"):
        try:
            found: list[str | None] | None = cells_of(line.encode(), source)
        except ValueError:
            found = None
        assert found == source.dialect.cells(line), line


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("seed", [2, 3])
def test_drain_and_audit_split_the_same_records_and_lose_no_byte(
    tmp_path: Path, name: str, seed: int
) -> None:
    source, path = SOURCES[name], tmp_path / "a.csv"
    chance = random.Random(seed)
    for _ in range(40):
        lines = random_lines(chance.randrange(10**6), 12, source.dialect, "\r\n", "\n", "\r")
        content = "".join(line + chance.choice(("\n", "\r\n", "\r")) for line in lines).encode()
        path.write_bytes(content)
        audited = [record.raw for record in TextFile(str(path), source=source)]
        if source.dialect.quote is not None:
            drained = [
                text.encode("latin-1")
                for text in split_records(lines_of(str(path)), source.dialect)
            ]
            assert drained == audited
        at = 0
        for (
            record
        ) in audited:  # each is in the file as it is, and nothing but line ends is between them
            at = content.index(record, at) + len(record)
        assert _without_ends(b"".join(audited)) == _without_ends(
            content.removeprefix(b"\xef\xbb\xbf")
        )


def _without_ends(text: bytes) -> bytes:
    return text.replace(b"\r", b"").replace(b"\n", b"")


def test_what_is_between_quotes_is_the_value() -> None:
    rfc = Dialect()
    assert rfc.cells('1,"",,"a\r\nb","c\rd","e""f"') == ["1", "", None, "a\r\nb", "c\rd", 'e"f']
    for line in ('"a"b', '1, "x, y"', 'a"b', '"a\\"b"', '"a', '"a" ,b', "a\nb"):
        assert rfc.cells(line) is None, line
    backslash = Dialect(escape="\\", null="\\N")
    assert backslash.cells(r'"a\"b","c\\",\N,"\\N",') == ['a"b', "c\\", None, "\\N", ""]
    for line in (r'"a\nb"', r"a\tb", '"a""b"', r"\Nx"):
        assert backslash.cells(line) is None, line
    assert Dialect(quote=None, null="\\N").cells('5" disk,\\N,,"x"') == ['5" disk', None, "", '"x"']
