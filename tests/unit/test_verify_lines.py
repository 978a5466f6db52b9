"""Line counting against a model of four lines, for any bytes and any chunks."""

from __future__ import annotations

import random
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draindown.config.dialect import Dialect
from draindown.sources.files.line_counter import LineCounter, LineTooLong

BOM = b"\xef\xbb\xbf"
ALPHABET = [
    b"\n",
    b"\r",
    b"\r\n",
    b" ",
    b"\t",
    b"\x0b",
    b"\x0c",
    b"a",
    b'"',
    b",",
    b"\x00",
    b"\xff",
    BOM,
    b"\xc3\xa4",
]
texts = st.lists(st.sampled_from(ALPHABET), max_size=40).map(b"".join)


def model(data: bytes) -> tuple[int, int]:
    lines = re.split(rb"\r\n|\n|\r", data.removeprefix(BOM))
    lines = lines[:-1] if lines[-1] == b"" else lines
    return len(lines), sum(not line.strip(b" \t\n\r\x0b\x0c") for line in lines)


def count(
    *chunks: bytes, limit: int = 1000, quotes: bool = False, header: bool = False
) -> LineCounter:
    counter = LineCounter(limit=limit, dialect=Dialect() if quotes else None, header=header)
    for chunk in chunks:
        counter.feed(chunk)
    counter.finish()
    return counter


@given(texts, st.lists(st.integers(0, 120), max_size=12))
def test_counts_are_those_of_the_model_whatever_the_chunks(data: bytes, cuts: list[int]) -> None:
    ends = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    counter = count(*(data[start:end] for start, end in pairwise(ends)))
    assert (counter.lines, counter.blank) == model(data)
    assert counter.bytes == len(data)
    assert counter.bom == data.startswith(BOM)


@given(texts)
def test_one_byte_at_a_time_counts_the_same(data: bytes) -> None:
    counter = count(*(data[i : i + 1] for i in range(len(data))))
    assert (counter.lines, counter.blank) == model(data)


@pytest.mark.parametrize(
    ("data", "lines", "blank"),
    [
        (b"", 0, 0),
        (b"\n", 1, 1),
        (b"a", 1, 0),
        (b"a\n", 1, 0),
        (b"a\n\nb", 3, 1),
        (b"a\r\nb\r\n", 2, 0),
        (b"a\rb\r", 2, 0),
        (b"a\n\r\n\rb", 4, 2),
        (b" \t\x0b\x0c\n", 1, 1),
        (b"\xc2\xa0\n", 1, 0),  # a no-break space is content
        (BOM, 0, 0),
        (BOM + b"\n", 1, 1),
        (b"\n\n\n\n", 4, 4),
    ],
)
def test_known_texts(data: bytes, lines: int, blank: int) -> None:
    counter = count(data)
    assert (counter.lines, counter.blank) == (lines, blank)


def test_the_header_is_the_first_record_that_is_not_blank() -> None:
    assert count(BOM + b"\n  \nid,name\r\n1,a\n", header=True).header == b"id,name"
    assert count(b"id,name", header=True).header == b"id,name"
    assert count(b'id,"na\nme"\n1,2\n', quotes=True, header=True).header == b'id,"na\nme"'
    assert (
        count(b'id,"na\r', b'\nme"\r\n1,2\n', quotes=True, header=True).header == b'id,"na\r\nme"'
    )
    assert count(b"id,na", b"me\n1,2\n", header=True).header == b"id,name"
    assert count(b"\n \n", header=True).header is None


@pytest.mark.parametrize(
    ("data", "spans"),
    [
        (b'a,"b"\n', False),
        (b'a,"b\nc"\n', True),
        (b'a,"b""c"\n', False),
        (b"a,b\n", False),
        (b'x\n"a', True),
    ],
)
def test_quotes_that_stay_open_are_seen(data: bytes, spans: bool) -> None:
    assert count(data, quotes=True).multiline is spans


def test_a_line_beyond_the_limit_is_named() -> None:
    counter = LineCounter(limit=10)
    counter.feed(b"a\n" + b"b" * 8)
    with pytest.raises(LineTooLong) as caught:
        counter.feed(b"c" * 8)
    assert caught.value.line == 2


def test_returns_at_the_ends_of_chunks_do_not_add_up_to_a_long_line() -> None:
    counter = LineCounter(limit=10)
    for _ in range(5):
        counter.feed(b"1234\r")
    counter.finish()
    assert counter.lines == 5


def test_mostly_blank_input_is_counted_as_exactly() -> None:
    chance = random.Random(1)
    for _ in range(3000):
        data = bytes(
            chance.choice(b"\n\n\n\n\r \t\x0b\x0cax\x00") for _ in range(chance.randrange(40))
        )
        counter, at = LineCounter(limit=10**6), chance.randrange(len(data) + 1)
        counter.feed(data[:at])
        counter.feed(data[at:])
        counter.finish()
        lines = re.split(rb"\r\n|\n|\r", data)
        lines = lines[:-1] if lines[-1] == b"" else lines
        assert (counter.lines, counter.blank) == (
            len(lines),
            sum(not line.strip() for line in lines),
        ), data
