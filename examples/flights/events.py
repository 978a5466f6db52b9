"""Write the demo's events: gzipped JSON lines in order of arrival, and a manifest of their content.

    landing/flights/events-0001.json.gz ...     the input of the pipeline
    landing/flights.manifest.json               the injected faults, and the expected table

The same fraction and seed give the same bytes, so a second call changes nothing.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import duckdb

from draindown.base.errors import TerminalError
from examples.flights import life
from examples.flights.oracle import fingerprint

Progress = Callable[[int, int], None]
"""Called with (files written, files in all)."""

_FORMAT = 1  # version of the data: it changes whenever the bytes for a fraction and seed change
_FILES = 100  # for all flights, without the files that are delivered twice
_FILES_AGAIN = 4
_FILES_A_DAY = 3
_AGAIN_AFTER = 5  # files later


@dataclass(frozen=True)
class Manifest:
    """The content of the landing directory, and the expected result. Counts include repeated files."""

    fraction: float
    seed: int
    days: int = 0
    format: int = _FORMAT
    files: dict[str, int] = field(default_factory=dict)
    """File name to size in bytes, in order of arrival."""
    base_files: int = 0
    lines: int = 0
    events: int = 0
    """Lines that are not blank."""
    injected: dict[str, int] = field(default_factory=dict)
    quarantined: dict[str, int] = field(default_factory=dict)
    """Number of quarantined rows by reason."""
    keys: int = 0
    """Keys alive at the end."""
    withdrawn: int = 0
    """Keys deleted at the end."""
    table_sha256: str = ""
    """Fingerprint of the final table as `examples.flights.oracle.fingerprint` makes it."""


@dataclass(frozen=True)
class _Blob:
    """A file to be written."""

    name: str
    content: bytes


def landing_files(target: Path) -> Path:
    """Return the directory of the event files."""
    return target / "flights"


def manifest_path(target: Path) -> Path:
    """Return the path of the manifest, which is beside the directory of the files."""
    return target / "flights.manifest.json"


def read_manifest(target: Path) -> Manifest | None:
    """Return the manifest of an earlier, completed call, or None."""
    path = manifest_path(target)
    return Manifest(**json.loads(path.read_text())) if path.exists() else None


def generate(
    target: Path, fraction: float = 1.0, seed: int = 2013, progress: Progress | None = None
) -> Manifest:
    """Write the year of events under `target`. Idempotent; existing later days are kept.

    Args:
        target: the landing root, created if missing.
        fraction: share of the flights; all events of a flight are either included or not.
        seed: seed of all faults.
        progress: called after each file.

    Raises:
        TerminalError: `demo-landing-differs` if the directory holds other demo data.
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction must be above 0 and at most 1, not {fraction}")
    known = read_manifest(target)
    if known and (known.fraction, known.seed, known.format) != (fraction, seed, _FORMAT):
        raise _differs(target, known, fraction, seed)
    wanted = known or Manifest(fraction=fraction, seed=seed)
    return wanted if known and _complete(target, known) else _write(target, wanted, progress)


def more(target: Path, progress: Progress | None = None) -> Manifest:
    """Write one more day of files after those of `generate`, so that the next run has work.

    Raises:
        TerminalError: `demo-landing-empty` if `generate` has not run.
    """
    known = read_manifest(target)
    if known is None:
        raise TerminalError(
            "demo-landing-empty",
            tried=f"add a day of events to {target}",
            found=f"no {manifest_path(target).name} there: the first year was never written completely",
            next=["make demo", f"python -m examples.flights.events {target}"],
        )
    return _write(target, replace(known, days=known.days + 1), progress)


def _differs(target: Path, known: Manifest, fraction: float, seed: int) -> TerminalError:
    return TerminalError(
        "demo-landing-differs",
        tried=f"write demo events (fraction {fraction}, seed {seed}, format {_FORMAT}) to {target}",
        found=f"events of fraction {known.fraction}, seed {known.seed}, format {known.format} are there already",
        next=["choose another directory", f"remove {target} and the lake that was filled from it"],
    )


def _complete(target: Path, known: Manifest) -> bool:
    paths = {landing_files(target) / name: size for name, size in known.files.items()}
    return all(path.exists() and path.stat().st_size == size for path, size in paths.items())


def _write(target: Path, wanted: Manifest, progress: Progress | None) -> Manifest:
    """Write every file and the manifest. Existing files with the same bytes are left alone."""
    landing_files(target).mkdir(parents=True, exist_ok=True)
    with life.live(wanted.fraction, wanted.seed) as con:
        for day in range(1, wanted.days + 1):
            life.add_day(con, day)
        base, total = _arrange(con, wanted)
        sizes: dict[str, int] = {}
        for blob in _blobs(con):
            sizes[blob.name] = len(blob.content)
            _put(landing_files(target) / blob.name, blob.content)
            if progress:
                progress(len(sizes), total)
        manifest = replace(_counted(con, wanted), files=sizes, base_files=base)
    _put(manifest_path(target), (json.dumps(asdict(manifest), indent=2) + "\n").encode())
    return manifest


def _put(path: Path, content: bytes) -> None:
    """Write under a hidden name, then rename, so that no reader sees a partial file."""
    if path.exists() and path.stat().st_size == len(content) and path.read_bytes() == content:
        return
    unfinished = path.with_name(f".{path.name}.tmp")
    unfinished.write_bytes(content)
    unfinished.replace(path)


def _arrange(con: duckdb.DuckDBPyConnection, wanted: Manifest) -> tuple[int, int]:
    """Assign the events to files by time of delivery, in the table `delivery(file, position, text, ...)`.

    Return the number of files of the year, and of all files.
    """
    first = max(1, round(_FILES * wanted.fraction))
    parts = _order(first, max(1, round(_FILES_AGAIN * wanted.fraction)))
    year = len(parts)
    parts += [(part, False) for part in range(first + 1, first + 1 + wanted.days * _FILES_A_DAY)]
    con.execute("create table slot (file int, part int, again boolean)")
    con.executemany(
        "insert into slot values (?, ?, ?)", [(n, *slot) for n, slot in enumerate(parts, start=1)]
    )
    con.execute(_DATED, {"first": life.day_start(1)})
    con.execute(_DEALT, {"first": first, "a_day": _FILES_A_DAY})
    con.execute(
        "create view delivery as select file, again, dealt.* from dealt join slot using (part)"
    )
    return year, len(parts)


def _order(first: int, again: int) -> list[tuple[int, bool]]:
    """Return the year's parts in order of arrival, each with whether it is a repetition.

    A repetition follows `_AGAIN_AFTER` parts after the first delivery.
    """
    order: list[tuple[int, bool]] = []
    copied = {
        min(first, part + _AGAIN_AFTER): part
        for part in (1 + first * (i + 1) // (again + 2) for i in range(again))
    }
    for part in range(1, first + 1):
        order.append((part, False))
        if part in copied and first > 1:
            order.append((copied[part], True))
    return order


_DATED = """
create table dated as select *, text_of(event) as text,
       case when delivered < $first then 0 else 1 + (delivered - $first) // 86400 end as day
from event
"""

_DEALT = """
create table dealt as
select *, place - min(place) over (partition by part) + 1 as position
from (select *, case when day = 0 then 1 + (place - 1) * $first // in_all
                     else $first + (day - 1) * $a_day + 1 + (place - 1) * $a_day // in_all end as part
      from (select *, row_number() over (partition by day order by delivered, flight_id, text) as place,
                   count(*) over (partition by day) as in_all
            from dated))
"""


def _blobs(con: duckdb.DuckDBPyConnection) -> Iterator[_Blob]:
    """Yield every file in order, compressed on as many threads as there are cores."""
    found = con.execute(
        "select file, string_agg(text, chr(10) order by position) from delivery group by file order by file"
    )
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        while some := found.fetchmany(8):
            yield from pool.map(_compress, some)


def _compress(numbered: tuple[int, str]) -> _Blob:
    number, text = numbered
    # no time and no name in the header, so that the same events give the same bytes
    return _Blob(
        f"events-{number:04d}.json.gz",
        gzip.compress(f"{text}\n".encode(), compresslevel=2, mtime=0),
    )


def _counted(con: duckdb.DuckDBPyConnection, wanted: Manifest) -> Manifest:
    """Return the manifest with the counts of events by kind and the expected result."""
    lines, events, again = con.execute(
        "select count(*), count(*) filter (fault is distinct from 'blank'), count(distinct file) filter (again) "
        "from delivery"
    ).fetchall()[0]
    kinds = con.execute(
        "select coalesce(fault, case when status = 'withdrawn' then 'withdrawn' else origin_of end) as kind, count(*) "
        "from delivery where origin_of <> 'life' group by kind order by kind"
    ).fetchall()
    injected = dict(kinds) | {
        "redelivered_files": again,
        "out_of_order": _overtaken(con),
        "new_field": _new_field(con),
    }
    quarantined = dict.fromkeys(sorted(set(life.REASONS.values())), 0)
    for kind, reason in life.REASONS.items():
        quarantined[reason] += injected.get(kind, 0)
    con.execute(_FINAL)
    keys = _number(con, "select count(*) from final")
    return replace(
        wanted,
        lines=lines,
        events=events,
        injected=injected,
        quarantined=quarantined,
        keys=keys,
        withdrawn=_number(con, "select count(distinct flight_id) from event where fault is null")
        - keys,
        table_sha256=fingerprint(con, "final"),
    )


def _overtaken(con: duckdb.DuckDBPyConnection) -> int:
    """Return the number of good events that arrive after a newer one of the same flight."""
    return _number(
        con,
        """select count(*) from (select moment < max(moment) over (partition by flight_id order by file, position
        rows between unbounded preceding and 1 preceding) as late from delivery where fault is null) where late""",
    )


def _new_field(con: duckdb.DuckDBPyConnection) -> int:
    return _number(
        con,
        "select count(*) from delivery where fault is null and gate is not null and status <> 'withdrawn'",
    )


def _number(con: duckdb.DuckDBPyConnection, query: str) -> int:
    return int(con.execute(query).fetchall()[0][0])


# The final table computed from the events as generated; the oracle computes it from the bytes of the files.
_FINAL = """
create view final as
select flight_id, status, origin, dest, carrier, tailnum, sched as sched_dep, dep_delay, arr_delay,
       moment as updated_at, left(flight_id, 7) as flight_month, '{"gate":"' || gate || '"}' as _rescued_data
from (select *, row_number() over (partition by flight_id order by moment desc, status = 'withdrawn' desc,
             status desc, origin desc, dest desc, carrier desc, tailnum desc nulls last, sched desc,
             dep_delay desc nulls last, arr_delay desc nulls last, gate desc nulls last) as place
      from event where fault is null)
where place = 1 and status <> 'withdrawn'
"""


def _main() -> None:
    """Run `python -m examples.flights.events TARGET [--fraction F] [--more]`: write the data and print its manifest."""
    parser = argparse.ArgumentParser(description="Write the demo's events.")
    parser.add_argument("target", type=Path)
    parser.add_argument("--fraction", type=float, default=1.0)
    parser.add_argument("--more", action="store_true", help="add one more day to what is there")
    asked = parser.parse_args()
    made = more(asked.target) if asked.more else generate(asked.target, asked.fraction)
    summary = asdict(made) | {"files": len(made.files)}
    sys.stdout.write(json.dumps(summary, indent=2) + "\n")


if __name__ == "__main__":
    _main()
