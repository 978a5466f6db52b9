"""Text files that are not UTF-8: what their bytes show of the encoding, and how to convert them."""

from __future__ import annotations

import codecs
import re

from draindown.sources.files.container import Broken

_WESTERN = "WINDOWS-1252"
_MARKS = "°§€²³µº\u2013\u2019\u00b4"
"""Characters of names beside letters, such as `Temp. °C`."""
_LONGEST_RUN = 2
"""Bytes beyond ASCII side by side, at most. In other alphabets whole words are of them."""
_WIDE = (
    (rb"(?:[^\0]\0){4}", "UTF-16LE"),
    (rb"(?:\0[^\0]){4}", "UTF-16BE"),
    (rb"(?:[^\0]\0{3}){2}", "UTF-32LE"),
    (rb"(?:\0{3}[^\0]){2}", "UTF-32BE"),
)


def refuse_wide(start: bytes) -> None:
    """Raise Broken if a content that begins with `start` has characters of two or four bytes
    without a mark.
    """
    for pattern, name in _WIDE:
        if re.match(pattern, start, re.DOTALL):
            raise Broken(
                "not-utf-8", f"begins like {name} without a byte order mark: {_convert(name)}"
            )


def header_text(header: bytes, rows: bytes) -> str:
    """Return the header of a CSV file as text. `rows`: bytes that follow the header, as far as they
    were read.

    Raises Broken `header-not-utf-8`: its names would be others, and columns would be NULL.
    """
    try:
        return header.decode()
    except UnicodeDecodeError:
        pass
    if _is_other_text(rows):
        raise Broken(
            "header-not-utf-8",
            "its header is not UTF-8, and its rows are: have the header written as UTF-8",
        )
    if _is_western(header):
        way = f"it is text in {_WESTERN}: if that is meant, {_convert(_WESTERN)}"
    else:
        way = f"its bytes do not show its encoding: ask who sends it, then {_convert('ENCODING')}"
    raise Broken("header-not-utf-8", f"its header is not UTF-8; {way}")


def _convert(name: str) -> str:
    return f"iconv -f {name} -t UTF-8 FILE"


def _is_other_text(rows: bytes) -> bool:
    """Return whether bytes are UTF-8, and not ASCII alone."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(rows)
    except UnicodeDecodeError:
        return False
    return not rows.isascii()


def _is_western(header: bytes) -> bool:
    """Return whether all bytes beyond ASCII are letters of Western Europe, where letters beyond
    ASCII stand alone.
    """
    runs = re.findall(rb"[\x80-\xff]+", header)
    try:
        shown = "".join(run.decode("cp1252") for run in runs)
    except UnicodeDecodeError:
        return False
    return max(map(len, runs)) <= _LONGEST_RUN and all(
        one.isalpha() or one in _MARKS for one in shown
    )
