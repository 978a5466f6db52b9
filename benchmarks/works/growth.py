"""Growth of the target (W4): the same batch of changes into tables of a million rows and more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

from benchmarks.changes import DAYS, Seeded
from benchmarks.commits import newest_merge
from benchmarks.contenders import ALL, DRAIN, HAND_WRITTEN, TUNED, Contender, by, tuned
from benchmarks.measure import apart
from benchmarks.pictures import Bar, Chart, bars
from benchmarks.place import BY_DAY, Place
from benchmarks.samples import Row, Sample, contenders, kinds, median, of, ratio
from benchmarks.work import FILE_ROWS, Asked, Bench, Finding, Work

_NEWEST = "newest days"
SERIES = {_NEWEST: 1.0, "90 % newest days": 0.9, "random keys": 0.0}
_FIRST_ROWS = 100
_DAILY = 11_111  # orders a day where history grows: a million in 90 days
PLAIN = replace(
    HAND_WRITTEN,
    name="plain MERGE, defaults",
    note="the hand-written job with default settings (1 GB heap), on the same table with deletion vectors",
)
PLAIN_TUNED = replace(
    TUNED,
    name="plain MERGE, tuned",
    note="the same: 2 shuffle partitions, no UI, serial collector, 2 GB heap",
)
PLAIN_PRUNED = Contender(
    "plain MERGE, pruned",
    "the tuned one, which reads its batch once more for the days in it, and names these in the MERGE's condition",
    by(lambda place: tuned(place, "--partition=event_date")),
)
_FACTS = {
    "merge_ms": "MERGE ms", "scan_ms": "scan ms", "rewrite_ms": "rewrite ms", "files_removed": "files removed",
    "files_added": "files added", "vectors_added": "deletion vectors",
}  # fmt: skip


def grown(bench: Bench, contender: Contender, name: str, seeded: Seeded) -> Place:
    """A place whose table holds the `seeded` rows and one small batch.

    A contender of ours makes the table by draining that batch, rows are appended to it, and the
    gate publishes them: what came by other hands it judges whole, once. For the others the table is
    made of the rows. Either way it is partitioned by day, one file per day, with deletion vectors.
    """
    place = bench.place(name, BY_DAY, seeded=seeded)
    first = replace(ALL, name=contender.name) if contender.ours else contender
    if not contender.ours:
        bench.seed(place)
    bench.batch(place, 0, 0, 1.0, new=_FIRST_ROWS)
    bench.must(first, place, "first batch")
    if contender.ours:
        bench.seed(place)
        bench.must(first, place, "seeded rows published")
    return place


def seeds(bench: Bench) -> list[Seeded]:
    """The sizes asked for, as whole days of orders."""
    return [Seeded(size - size % DAYS) for size in bench.asked.sizes]


def millions(seeded: Seeded) -> str:
    """A table's size as the tables have it."""
    return f"{seeded.rows / 1e6:.2g} M rows"


def _measure(bench: Bench) -> list[Sample]:
    return _batches(bench, {millions(seeded): seeded for seeded in seeds(bench)}, SERIES)


def _longer(bench: Bench) -> list[Sample]:
    # the seed is written in so many parts, each of whole days
    tables = [
        Seeded(days * _DAILY, days) for size in bench.asked.sizes for days in [size - size % DAYS]
    ]
    return _batches(
        bench,
        {f"{table.days:,} days, {millions(table)}": table for table in tables},
        {_NEWEST: 1.0},
    )


def _batches(
    bench: Bench, tables: Mapping[str, Seeded], chosen: Mapping[str, float]
) -> list[Sample]:
    """Into each table, by what it is called, the batches of each of the series, by the share of
    newest days.
    """
    samples = []
    for table, seeded in tables.items():
        places = {
            c.name: grown(bench, c, f"growth-{table}-{c.name}", seeded) for c in bench.contenders
        }
        number = 0
        for series, recent in chosen.items():
            for turn in range(bench.asked.repeat):
                number += 1
                for contender in bench.contenders:
                    place = places[contender.name]
                    bench.batch(place, number, bench.rows(), recent)
                    sample = bench.run(contender, place, f"{table}, {series}", turn + 1)
                    samples.append(replace(sample, facts=apart(newest_merge, place.table)))
        for contender in bench.contenders:
            bench.judged_last(contender, places[contender.name], samples)
    return samples


def _findings(samples: Sequence[Sample]) -> list[Finding]:
    return [
        Finding("The same batch, over the smallest table", _over_smallest(samples)),
        Finding("What the MERGEs touched", _touched(samples)),
    ]


def _over_smallest(samples: Sequence[Sample]) -> list[Row]:
    rows: list[Row] = []
    for series in SERIES:
        ending = f", {series}"
        smallest, *bigger = [
            kind.removesuffix(ending) for kind in kinds(samples) if kind.endswith(ending)
        ] or [""]
        for table, name in product(bigger, contenders(samples)):
            big, small = of(samples, table + ending, name), of(samples, smallest + ending, name)
            row: Row = {"table": f"{table} / {smallest}", "keys": series, "contender": name}
            titles = {"wall": "wall_s", "CPU": "cpu_s", "MERGE alone": "merge_ms"}
            rows.append(
                row
                | {
                    title: ratio(median(big, what), median(small, what))
                    for title, what in titles.items()
                }
            )
    return rows


def _touched(samples: Sequence[Sample]) -> list[Row]:
    rows: list[Row] = []
    present = contenders(samples)
    plains = [plain.name for plain in (PLAIN, PLAIN_TUNED, PLAIN_PRUNED) if plain.name in present]
    for kind, name in product(kinds(samples), present):
        group = of(samples, kind, name)
        row: Row = {"run": kind, "contender": name}
        row |= {title: _whole(median(group, fact)) for fact, title in _FACTS.items()}
        for (what, title), plain in product((("wall_s", "wall"), ("cpu_s", "CPU")), plains):
            over = median(of(samples, kind, plain), what)
            row[f"{title} over {plain.rpartition(' ')[2]}"] = ratio(median(group, what), over)
        rows.append(row)
    return rows


def _whole(value: float | None) -> str | None:
    return None if value is None else f"{value:.0f}"


def _pictures(samples: Sequence[Sample]) -> Mapping[str, str]:
    drawn = [
        Bar(kind, name, median(of(samples, kind, name), "wall_s") or 0)
        for kind, name in product(kinds(samples), contenders(samples))
    ]
    chart = Chart(
        "A batch of changes into a growing table",
        "table and keys of the batch",
        "wall time, seconds",
    )
    return {"bench-growth": bars(chart, drawn)}


WORK = Work(
    "growth",
    f"batches of {FILE_ROWS:,} changes into tables of 1 and 10 million rows, by how recent the changed rows are",
    _measure,
    (PLAIN, PLAIN_TUNED, DRAIN),
    Asked(repeat=3, sizes=(1_000_000, 10_000_000)),
    findings=_findings,
    pictures=_pictures,
)

HISTORY = Work(
    "history",
    f"batches of {FILE_ROWS:,} changes in the newest days of tables with {_DAILY:,} rows a day, for 90 days and longer",
    _longer,
    (PLAIN, PLAIN_TUNED, PLAIN_PRUNED, DRAIN),
    Asked(repeat=3, sizes=(90, 900, 2700)),
    findings=_findings,
)
