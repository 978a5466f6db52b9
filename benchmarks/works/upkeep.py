"""Check and compaction on grown tables (W7): the gate's changed rows against Great Expectations
over all rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from benchmarks.contenders import ALL, DRAIN, Contender, by, draindown, submit
from benchmarks.place import ROOT, Failed, Place
from benchmarks.samples import Row, Sample, kinds, median, of, ratio
from benchmarks.work import FILE_ROWS, Asked, Bench, Finding, Work, result, say
from benchmarks.works.growth import grown, millions, seeds
from draindown.base.exits import Exit
from draindown.gate import suite
from draindown.launch import settings as spark_settings

SUITE = ROOT / "benchmarks" / "expectations" / "changes.json"
_SETTLING = 5  # runs in which maintenance must come to an end


def _short() -> Mapping[str, str]:
    return spark_settings.settings("local[*]", size="small")


CHECK = Contender(
    "draindown, check",
    "draindown run --no-compact with nothing to drain: judges the rows not yet published, and publishes",
    by(lambda place: draindown(place, "--no-compact")),
    keeps_refused=True,
)
WHOLE = Contender(
    "Great Expectations, whole table",
    "benchmarks/programs/whole_table.py: the same suite over all rows, same Spark settings",
    by(
        lambda place: submit(
            "whole_table.py", _short(), "--table", str(place.table), "--suite", str(SUITE)
        )
    ),
)
IDLE = Contender(
    "draindown, idle",
    "draindown run when drain, check and compaction have nothing to do",
    by(draindown),
)


def _measure(bench: Bench) -> list[Sample]:
    if len(bench.contenders) < len(WORK.contenders):
        raise Failed("all must take part: verdicts are compared")
    samples = []
    for seeded in seeds(bench):
        place = grown(bench, DRAIN, f"upkeep-{seeded.rows}", seeded)
        turns = range(1, bench.asked.repeat + 1)
        for turn in turns:
            samples += _checked(bench, place, f"check, {millions(seeded)}", turn)
        _settle(bench, place)
        samples += [
            _idle(bench, place, f"nothing to do, {millions(seeded)}", turn) for turn in turns
        ]
        ours, theirs = _checked(
            bench, place, f"bad row, {millions(seeded)}", bench.asked.repeat + 1, bad=1
        )
        # the table has all batches now: the oracle, which reads all of it, is asked once
        judged = bench.judged(CHECK, place, ours)
        samples += [judged if ours.verdict == "exact" else ours, theirs]
    return samples


def _checked(bench: Bench, place: Place, kind: str, number: int, bad: int = 0) -> list[Sample]:
    """One batch, judged by both. A bad row must make exactly one expectation fail, for both."""
    bench.batch(place, number, bench.rows(), 1.0, bad=bad)
    bench.must(DRAIN, place, "drain", number)
    ours, our_verdicts = _verdicts(bench, CHECK, place, kind, number)
    theirs, their_verdicts = _verdicts(bench, WHOLE, place, kind, number)
    told = "exact"
    if our_verdicts != their_verdicts or list(our_verdicts.values()).count(False) != bad:
        told = f"verdicts differ: {our_verdicts} and {their_verdicts}"
    elif ours.facts["judged"] > bench.rows() + bad:
        told = f"judged {ours.facts['judged']:,.0f} rows, more than changed"
    say(f"    verdicts: {'the same' if told == 'exact' else told}, {bad} should fail")
    expected = Exit.GATE_FAILED if bad else Exit.DONE
    ours = replace(
        ours, cost=replace(ours.cost, exit_code=int(ours.cost.exit_code != expected)), verdict=told
    )
    return [ours, theirs]


def _verdicts(
    bench: Bench, who: Contender, place: Place, kind: str, number: int
) -> tuple[Sample, dict[int, bool]]:
    """The sample, and which expectations of the suite (by position) it found to hold."""
    sample, found = bench.run(who, place, kind, number), result(place)
    if who is WHOLE:
        return sample, {int(at): success for at, success in found.items()}
    names = suite.names(json.loads(SUITE.read_text()))
    parts = [report["check"] for report in found["reports"] if report.get("check")]
    sample = replace(sample, facts={"judged": sum(part["changed_rows"] for part in parts)})
    return sample, {
        names.index(e["name"]): e["success"] for part in parts for e in part["expectations"]
    }


def _settle(bench: Bench, place: Place) -> None:
    """Run until maintenance has nothing left. Raises Failed."""
    for number in range(1, _SETTLING + 1):
        bench.must(ALL, place, "settling", number)
        if _steps(place) == ["plan"]:
            return
    raise Failed("maintenance finds something to do run after run")


def _steps(place: Place) -> list[str]:
    return [report["step"] for report in result(place)["reports"]]


def _idle(bench: Bench, place: Place, kind: str, number: int) -> Sample:
    """A run that has nothing to do; that it started no JVM shows in what it says."""
    sample = bench.run(IDLE, place, kind, number)
    started = "starting Spark" in (place.home / "err.txt").read_text()
    return replace(
        sample, verdict="a JVM was started" if started or _steps(place) != ["plan"] else "exact"
    )


def _findings(samples: Sequence[Sample]) -> list[Finding]:
    """Per size of table: the check over Great Expectations, and each over its own on the smallest
    table.
    """
    sizes = [kind for kind in kinds(samples) if kind.startswith("check, ")]
    rows: list[Row] = []
    for kind in sizes:
        row: Row = {"table": kind.removeprefix("check, ")}
        for what, title in (("wall_s", "wall"), ("cpu_s", "CPU")):
            ours, theirs = (median(of(samples, kind, c.name), what) for c in (CHECK, WHOLE))
            smallest = median(of(samples, sizes[0], CHECK.name), what)
            row |= {
                f"check / whole table, {title}": ratio(ours, theirs),
                f"over the smallest, {title}": ratio(ours, smallest),
            }
        rows.append(row)
    return [
        Finding(
            "The check of a batch against Great Expectations over the whole table; verdicts are the same",
            rows,
        )
    ]


WORK = Work(
    "upkeep",
    f"check of {FILE_ROWS:,} changed rows in tables of 1 and 10 million rows; a run with nothing to do",
    _measure,
    (CHECK, WHOLE, IDLE),
    Asked(repeat=3, sizes=(1_000_000, 10_000_000)),
    findings=_findings,
)
