"""Good files of every format with a few bytes changed, each by its seed alone, and what plain
Python finds in them.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import re
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq

FLOWS: dict[str, dict[str, Any]] = {
    "json": {"columns": {"k": "string not null", "s": "string"}},
    "csv": {"columns": {"k": "string not null", "s": "string", "n": "int"}},
    "text": {"columns": {"value": "string"}},
    "parquet": {
        "columns": {
            "k": "string not null",
            "n": "int",
            "d": "double",
            "at": "timestamp",
            "st": "struct<x: int>",
        }
    },
    "orc": {
        "columns": {
            "k": "string not null",
            "n": "int",
            "d": "double",
            "at": "timestamp",
            "st": "struct<x: int>",
        }
    },
}
_TEXTS = ["", "é", "[{", "a b", "-1", "1,5", "🛫", "\\"]
_SPLICES = [
    b"\n",
    b"\r",
    b"\0",
    b"\xff",
    b'"',
    b"}",
    b"]",
    b"{}",
    b" ",
    b",",
    b"\xc3",
    b"\\",
    b"\xef\xbb\xbf",
    b"\x1f\x8b",
]


@dataclass(frozen=True)
class Found:
    """What is in a file: lines with blank ones and, where plain Python can judge, the keys of rows
    that must land.

    `lines` is None for a file that can't be read whole.
    """

    lines: int | None
    blank: int = 0
    lands: Counter[Any] | None = None


def mutant(form: str, seed: int) -> tuple[str, bytes]:
    """Name and bytes of one file: a good one with 1 to 8 changes, in the packed bytes if it is
    packed.
    """
    chance = random.Random(f"{form} {seed}")
    if form in ("parquet", "orc"):
        return f"{seed:04d}.{form}", _mutated(chance, _columnar(chance, form), columnar=True)
    content = _text(chance, form)
    if chance.random() < 0.6:
        return f"{seed:04d}.{form}", _mutated(chance, content)
    if chance.random() < 0.5:  # changed, then packed: the container is whole
        return f"{seed:04d}.{form}.gz", gzip.compress(_mutated(chance, content), mtime=0)
    return f"{seed:04d}.{form}.gz", _mutated(chance, gzip.compress(content, mtime=0))


def _text(chance: random.Random, form: str) -> bytes:
    end = chance.choice(["\n", "\r\n", "\r"])
    rows = [{"k": f"k{n}", "s": chance.choice(_TEXTS), "n": n} for n in range(20)]
    if form == "json":
        ascii_only = chance.random() < 0.5
        lines = [json.dumps(row, ensure_ascii=ascii_only) for row in rows]
    elif form == "csv":
        lines = [
            "k,s,n",
            *[f"{row['k']},{_cell(chance, str(row['s']))},{row['n']}" for row in rows],
        ]
    else:
        lines = [f"{row['k']} {row['s']}" for row in rows]
    return "".join(line + end for line in lines).encode()


def _cell(chance: random.Random, text: str) -> str:
    return f'"{text}\n{text}""x"' if chance.random() < 0.1 else f'"{text}"' if "," in text else text


def _columnar(chance: random.Random, form: str) -> bytes:
    size = chance.choice([1, 20, 300])
    table = pa.table(
        {
            "k": [f"k{n % 50}" for n in range(size)],
            "n": pa.array([n if n % 7 else None for n in range(size)], pa.int32()),
            "d": [n / 3 for n in range(size)],
            "at": pa.array(
                [n * 10**6 for n in range(size)],
                pa.timestamp("us", "UTC" if form == "parquet" else None),
            ),
            "st": [{"x": n} for n in range(size)],
            "more": [chance.choice(_TEXTS) for _ in range(size)],
        }
    )
    out = io.BytesIO()
    if form == "orc":
        orc.write_table(
            table, out, compression=chance.choice(["uncompressed", "zlib", "zstd", "snappy"])
        )
        return out.getvalue()
    pq.write_table(
        table,
        out,
        row_group_size=100,
        compression=chance.choice(["none", "snappy", "zstd", "gzip"]),
        use_dictionary=chance.random() < 0.5,
        data_page_version=chance.choice(["1.0", "2.0"]),
        write_statistics=chance.random() < 0.5,
    )
    return out.getvalue()


def _mutated(chance: random.Random, content: bytes, *, columnar: bool = False) -> bytes:
    data = bytearray(content)
    for _ in range(chance.choice([1, 1, 1, 2] if columnar else [1, 1, 1, 2, 4, 8])):
        if not data:
            break
        # the footer says where everything is and of what type; what moves it, no reader takes
        low = len(data) * 2 // 3 if columnar and chance.random() < 0.5 else 0
        at = chance.randrange(low, len(data))
        match chance.randrange(2 if columnar and chance.random() < 0.9 else 6):
            case 0:
                data[at] = chance.randrange(256)
            case 1:
                data[at] ^= 1 << chance.randrange(8)
            case 2:
                del data[at : at + chance.randint(1, 30)]
            case 3:
                data[at:at] = chance.choice(_SPLICES)
            case 4:
                data[at:at] = data[at : at + chance.randint(1, 60)]
            case 5 if chance.random() < 0.2:
                del data[at:]
    return bytes(data)


def found_in(form: str, path: Path) -> Found:
    """What the file holds, by plain Python; of a columnar one, by reading all of it."""
    content = path.read_bytes()
    if form in ("parquet", "orc"):
        return _rows_in(form, path) if content else Found(0)
    if path.name.endswith(".gz") and content:
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error):
            return Found(None)
    if content.startswith((b"\xff\xfe", b"\xfe\xff", b"\x1f\x8b")):
        return Found(None)
    lines = re.split(rb"\r\n|\n|\r", content.removeprefix(b"\xef\xbb\xbf"))
    lines = lines[:-1] if lines[-1] == b"" else lines
    blank = sum(not line.strip() for line in lines)
    if form == "csv":  # where quotes may fold lines, the audit counts: it has a reader of its own
        return (
            Found(len(lines), blank)
            if b'"' in content
            else Found(len(lines), blank, _csv_lands(lines))
        )
    judge = _text_key if form == "text" else _json_key
    keys = [judge(line) for line in lines if line.strip()]
    return Found(len(lines), blank, Counter(key for key in keys if key is not None))


def _text_key(line: bytes) -> str | None:
    try:
        return line.decode()
    except UnicodeDecodeError:
        return None


def _json_key(line: bytes) -> str | None:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({name for name, _ in pairs}) < len(pairs):
            raise ValueError("twice")
        return dict(pairs)

    def constant(name: str) -> Any:
        raise ValueError(name)

    try:
        row = json.loads(line.decode(), object_pairs_hook=once, parse_constant=constant)
    except (ValueError, RecursionError):
        return None
    key = row.get("k") if isinstance(row, dict) else None
    return (
        key
        if key is None or isinstance(key, str)
        else json.dumps(key, separators=(",", ":"), ensure_ascii=False)
    )


def _csv_lands(lines: list[bytes]) -> Counter[Any] | None:
    header = next((line for line in lines if line.strip()), b"")
    if header != b"k,s,n":
        return None  # another contract; the audit counts it
    keys: Counter[Any] = Counter()
    for line in lines:
        cells = (_text_key(line) or "").split(",")
        if (
            line.strip()
            and line != header
            and len(cells) >= 3
            and cells[0]
            and re.fullmatch(r"\s*([+-]?\d{1,8})?\s*", cells[2])
        ):
            keys[cells[0]] += 1
    return keys


def _rows_in(form: str, path: Path) -> Found:
    try:
        table = (
            pq.read_table(path, use_threads=False, partitioning=None)
            if form == "parquet"
            else orc.read_table(path)
        )
        table.validate()
    except Exception:  # noqa: BLE001 - whatever it says, it can't read the file
        return Found(None)
    return Found(table.num_rows)
