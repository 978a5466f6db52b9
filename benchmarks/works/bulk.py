"""A large load into nothing: one file that is one batch, and many files; each format, with keys and
without.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import bulk
from benchmarks.contenders import BASELINE, PROGRAMS, Contender, draindown, submit
from benchmarks.measure import apart, measured
from benchmarks.oracle import Verdict
from benchmarks.place import ROOT, Place, Shape
from benchmarks.samples import Row, Sample, contenders, kinds, median, of, ratio
from benchmarks.work import Asked, Bench, Finding, Work, say
from draindown.lake.table import Table

_MODES = ("upsert", "append")
_DEFAULT_FILES = 10
"""Files per trigger of the hand-written job at its defaults."""


def _unmeasured(_: Place) -> Any:
    raise AssertionError("what runs depends on the files: see `_command`")


OURS = Contender(
    "draindown, drain", "draindown run --no-check --no-compact, heap of 2 GB", _unmeasured
)
HAND = Contender(
    BASELINE,
    "benchmarks/programs/bulk_by_hand.py, default settings, as many files in a batch as draindown's first has",
    _unmeasured,
)
DEFAULT = Contender(
    "hand-written, 10 files a batch",
    f"the same with {_DEFAULT_FILES} files per trigger; the same job where there is one file",
    _unmeasured,
)
DELTA_RS = Contender(
    "delta-rs, no Spark",
    "benchmarks/programs/bulk_delta_rs.py: DuckDB reads and takes the newest of each key, delta-rs appends",
    _unmeasured,
)


def _bulk(bench: Bench, files: int, forms: Sequence[str], modes: Sequence[str]) -> list[Sample]:
    samples: list[Sample] = []
    for rows in (bench.rows(size) for size in bench.asked.sizes):
        for form in forms:
            landing = _landing(bench, form, rows, files)
            for mode in modes:
                kind = f"{form}, {mode}, {rows:,} rows in {files} file{'s' if files > 1 else ''}"
                samples += _rounds(
                    bench, landing, kind, {"form": form, "mode": mode, "rows": rows, "files": files}
                )
    return samples


def _landing(bench: Bench, form: str, rows: int, files: int) -> Path:
    landing = bench.scratch / f"bulk-{form}-{rows}-{files}"
    if not landing.exists():
        say(f"writing {rows:,} rows as {form} in {files} files")
        part = landing.with_name(f"{landing.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        apart(bulk.write, part / "bulk", form, rows, files)
        part.rename(landing)
    return landing


def _rounds(bench: Bench, landing: Path, kind: str, asked: Mapping[str, Any]) -> list[Sample]:
    samples, batches = [], 1
    shape = Shape("bulk", ROOT / "benchmarks", "", lambda place, _: _judged(place, asked))
    for turn in range(bench.asked.repeat):
        # ours says how many batches
        for contender in sorted(bench.contenders, key=lambda one: one is not OURS):
            place = bench.place(f"bulk-{turn}-{contender.name}", shape, landing)
            per_batch = -(-asked["files"] // batches) if contender is HAND else _DEFAULT_FILES
            command = _command(contender, place, asked, per_batch)
            run = replace(
                contender,
                run=lambda at, command=command: measured(command, at.environment(), at.home),
            )
            sample = bench.run(run, place, kind, turn + 1)
            if contender is OURS and not sample.cost.exit_code:
                batches = Table(str(place.lake / "ledger" / "bulk")).row_count
                sample = replace(sample, facts={"batches": batches})
            found = _judged(place, asked) if not sample.cost.exit_code else Verdict()
            say(f"    oracle: {found.text}")
            samples.append(replace(sample, wrong_rows=found.wrong_rows, verdict=found.text))
            shutil.rmtree(place.lake)  # some gigabytes
    return samples


def _judged(place: Place, asked: Mapping[str, Any]) -> Verdict:
    found: Verdict = apart(
        partial(bulk.compare, appended=asked["mode"] == "append"), place.table, asked["rows"]
    )
    return found


def _command(contender: Contender, place: Place, asked: Mapping[str, Any], files: int) -> list[str]:
    where = ["--landing", str(place.landing), "--lake", str(place.lake), "--form", asked["form"]]
    where += ["--mode", asked["mode"]]
    if contender is DELTA_RS:
        return [sys.executable, str(PROGRAMS / "bulk_delta_rs.py"), *where]
    if contender is not OURS:
        return submit("bulk_by_hand.py", {}, *where, "--shape", "bulk", "--files", str(files))
    pipeline = place.home / "bulk.yaml"
    pipeline.write_text(json.dumps(_pipeline(place, asked)))
    return draindown(
        replace(place, shape=replace(place.shape, pipeline=str(pipeline))),
        "--no-check",
        "--no-compact",
    )


def _pipeline(place: Place, asked: Mapping[str, Any]) -> dict[str, Any]:
    required = ("order_id", "seq")
    columns = {
        name: f"{kind} not null" if name in required else kind
        for name, kind in bulk.COLUMNS.items()
    }
    target = {"keys": ["order_id"], "sequence_by": ["seq"]} if asked["mode"] == "upsert" else {}
    source = {"files": f"{place.files}/*.{asked['form']}", "format": asked["form"]}
    flow = {"source": source, "columns": columns, "target": target}
    return {"pipeline": "bulk", "lake": str(place.lake), "flows": {"bulk": flow}}


def _findings(samples: Sequence[Sample]) -> list[Finding]:
    """Per kind and contender: rows a second, and wall, CPU and memory over the hand-written
    job's.
    """
    rows: list[Row] = []
    for kind in kinds(samples):
        base = of(samples, kind, HAND.name)
        for name in contenders(samples):
            group = of(samples, kind, name)
            ratios = {
                f"{label} over {HAND.name}": ratio(median(group, what), median(base, what))
                for what, label in (("wall_s", "wall"), ("cpu_s", "CPU"), ("rss_mb", "memory"))
            }
            rows.append(
                {"load": kind, "contender": name, "batches": median(group, "batches"), **ratios}
            )
    return [Finding("Over the hand-written job with the same batches", rows)]


WORK = Work(
    "bulk",
    "one file of 11,000,000 rows into an empty table: JSON, CSV and Parquet, upsert and append",
    lambda bench: _bulk(bench, 1, bulk.FORMS, _MODES),
    (OURS, HAND, DELTA_RS),
    Asked(sizes=(11_000_000,)),
    findings=_findings,
)
FILES = Work(
    "bulk-files",
    "300 files of JSON with 33,000,000 rows into an empty table, upsert",
    lambda bench: _bulk(bench, 300, ("json",), ("upsert",)),
    (OURS, HAND, DEFAULT, DELTA_RS),
    Asked(sizes=(33_000_000,)),
    findings=_findings,
)
JSON = Work(
    "bulk-json",
    "one file of JSON, 10,000 to 11,000,000 rows, upsert: by size of the batch",
    lambda bench: _bulk(bench, 1, ("json",), ("upsert",)),
    (OURS, HAND),
    Asked(sizes=(10_000, 100_000, 1_000_000, 11_000_000)),
    findings=_findings,
)
