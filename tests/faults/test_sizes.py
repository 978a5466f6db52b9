"""Input larger than memory: parked or refused, never held. Each drain is a process of its own,
whose peak is read.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from draindown.audit.recount import audit
from draindown.sources.files import parked
from tests.faults.lakes import ROOT
from tests.landing import Landing
from tests.scores import Trial, conclude

pytestmark = pytest.mark.campaign
MB = 1024**2
JVM_MOST = 2900 * MB
"""A heap of 2 GB, and what a JVM needs besides: code, classes, buffers of readers."""
PYTHON_MOST = {"json": 700 * MB, "parquet": 1700 * MB}
"""Of Parquet a page is unpacked whole, and a value is held more than once while it is."""
COLUMNS = {"id": "int not null", "s": "string"}
GOOD = b"".join(b'{"id":%d}\n' % n for n in range(1000))


def lake(home: Path, form: str, **source: Any) -> Landing:
    flow = {"source": {"format": form, **source}, "columns": COLUMNS, "target": {}}
    home.mkdir(parents=True)
    (home / "flow.json").write_text(json.dumps(flow))
    return Landing(home, **flow)


def drained(landing: Landing) -> dict[str, Any]:
    """What a drain in a process of its own took."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    command = [sys.executable, str(ROOT / "tests" / "faults" / "sizes.py"), str(landing.home)]
    with (landing.home / "drain.log").open("wb") as log:
        subprocess.run(
            command, env=os.environ | {"PYTHONPATH": path}, stdout=log, stderr=log, check=False
        )
    taken: dict[str, Any] = json.loads((landing.home / "taken.json").read_text())
    print(
        landing.home.name,
        taken,
        (landing.home / "drain.log").read_text()[-1500:] if taken["code"] else "",
    )
    return taken


def write(path: Path, pieces: Iterator[bytes] | Sequence[bytes]) -> int:
    """Write a file piece by piece; its size."""
    with path.open("wb") as out:
        for piece in pieces:
            out.write(piece)
    return path.stat().st_size


def repeated(start: bytes, filler: bytes, times: int, end: bytes) -> Iterator[bytes]:
    yield start
    for _ in range(times):
        yield filler
    yield end


def bounded(trial: Trial, taken: dict[str, Any], form: str) -> None:
    """Promises about memory, and what was measured."""
    python, jvm = taken["python"] // MB, taken["jvm"] // MB
    trial.fired += f"; peak {python} MB Python, {jvm} MB JVM"
    trial.promise(
        f"at most {PYTHON_MOST[form] // MB} MB of Python's", taken["python"] < PYTHON_MOST[form]
    )
    trial.promise("at most 2.9 GB of the JVM's", taken["jvm"] < JVM_MOST)
    trial.loud, trial.seconds = bool(taken["code"]), taken["seconds"]


def accounted(
    trial: Trial, landing: Landing, ids: set[int], refused: int, kept_out: dict[str, str]
) -> None:
    rows = [row["id"] for row in landing.rows("id")]
    trial.promise("good rows land, once", len(rows) == len(set(rows)) and set(rows) == ids)
    trial.promise(
        "each bad record is in quarantine",
        [r["reason"] for r in landing.quarantine()] == ["too_large"] * refused,
    )
    found = {Path(event.path).name: event.reason for event in parked.open_files(landing.layout)}
    trial.promise("kept out alone, by name", found == kept_out)
    totals = landing.totals()
    trial.promise("sums equal the raw bytes", totals["records"] == len(ids) + refused)
    trial.promise("audit clean", audit(landing.spec, "f", root=landing.home).clean)


@pytest.mark.timeout(900)
def test_lines_and_bombs_are_not_held_in_memory(tmp_path: Path) -> None:
    landing = lake(tmp_path / "json", "json")
    into = landing.landing
    write(into / "good.json", [GOOD])
    x = b"x" * MB
    sizes = [
        write(into / "line.json", repeated(b'{"id":-1}\n{"id":0,"s":"', x, 300, b'"}\n{"id":-2}\n'))
    ]
    with gzip.open(into / "line.json.gz", "wb", 1) as out:
        out.writelines(repeated(b'{"id":0,"s":"', os.urandom(MB // 2).hex().encode(), 300, b'"}\n'))
    sizes.append(write(into / "zeros.json.gz", [gzip.compress(bytes(64 * MB))] * 80))
    sizes.append(write(into / "blank.json.gz", [gzip.compress(b"\n" * (64 * MB))] * 80))
    sizes.append(write(into / "nested.json.gz", [gzip.compress(gzip.compress(bytes(64 * MB)))]))
    long = [b'{"id":%d}\n{"id":0,"s":"%b"}\n' % (5000 + n, x * 30) for n in range(4)]
    sizes.append(write(into / "long.json", long))
    trial = Trial("B21", "json, its own process", "300 MB lines, 5 GB bombs, lines of 30 MB")
    trial.fired = f"{sum(sizes) // MB} MB delivered"
    taken = drained(landing)
    bounded(trial, taken, "json")
    trial.promise("the run is green", taken["code"] == 0)
    kept_out = {
        "line.json": "record-too-long",
        "line.json.gz": "record-too-long",
        "zeros.json.gz": "record-too-long",
    }
    kept_out |= {"blank.json.gz": "too-large", "nested.json.gz": "wrong-container"}
    accounted(trial, landing, {*range(1000), *range(5000, 5004)}, 4, kept_out)
    conclude([trial])


def _dictionary_bomb(rows: int) -> bytes:
    """One value of 20 MB, named by every row: a few KB that are hundreds of GB if written out."""
    value = pa.DictionaryArray.from_arrays(
        pa.array([0] * rows, pa.int32()), pa.array(["z" * (20 * MB)])
    )
    out = io.BytesIO()
    table = pa.table({"id": list(range(rows)), "s": value})
    pq.write_table(
        table, out, compression="zstd", dictionary_pagesize_limit=64 * MB, use_dictionary=["s"]
    )
    return out.getvalue()


@pytest.mark.timeout(900)
def test_columnar_values_and_bombs_are_not_held_in_memory(tmp_path: Path) -> None:
    landing = lake(tmp_path / "parquet", "parquet")
    into = landing.landing
    pq.write_table(pa.table({"id": list(range(1000))}), into / "good")
    pq.write_table(
        pa.table({"id": [-1, -2], "s": ["x" * (300 * MB), "y"]}), into / "value", compression="zstd"
    )
    pq.write_table(
        pa.table({"id": [5000, 0], "s": ["y", "x" * (30 * MB)]}), into / "long", compression="zstd"
    )
    size = write(into / "bomb", [_dictionary_bomb(20_000)])
    trial = Trial(
        "B21", "parquet, its own process", "a value of 300 MB, a 20 MB value in each of 20,000 rows"
    )
    trial.fired = f"a bomb of {size // 1024} KB"
    taken = drained(landing)
    bounded(trial, taken, "parquet")
    trial.promise("the run is green", taken["code"] == 0)
    accounted(
        trial, landing, {*range(1000), 5000}, 1, {"value": "record-too-long", "bomb": "too-large"}
    )
    conclude([trial])


@pytest.mark.timeout(1500)
def test_ten_thousand_files_then_a_large_one(tmp_path: Path) -> None:
    landing = lake(tmp_path / "many", "json")
    for n in range(10_000):
        write(landing.landing / f"{n:05}.json", [b'{"id":%d}\n' % n])
        os.utime(landing.landing / f"{n:05}.json", (10**9, 10**9))
    filler = zlib.compress(os.urandom(100)).hex() * 38
    rows = range(10_000, 10_000 + 256 * 1024)
    size = write(
        landing.landing / "large.json",
        (b'{"id":%d,"s":"%b"}\n' % (n, filler.encode()) for n in rows),
    )
    trial = Trial("B32", "json, its own process", "10,000 files, then one of 2 GB")
    trial.fired = f"10,000 files and {size // MB} MB"
    taken = drained(landing)
    bounded(trial, taken, "json")
    trial.promise("the run is green", taken["code"] == 0)
    accounted(trial, landing, set(range(10_000 + 256 * 1024)), 0, {})
    conclude([trial])
