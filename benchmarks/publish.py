"""Results as Markdown and JSON: the tables, and their place in docs/benchmark-results.md."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.place import ROOT
from benchmarks.samples import Row, Sample, summary
from benchmarks.work import Finding, Work

PAGE = ROOT / "docs" / "benchmark-results.md"
PICTURES = ROOT / "docs" / "pictures"
RESULTS = ROOT / "benchmarks" / "results"

_TITLES = {
    "kind": "run", "contender": "", "wall_s": "wall s", "wall_s_ratio": "ratio", "cpu_s": "CPU s",
    "cpu_s_ratio": "ratio", "rss_mb": "largest process MB", "rss_mb_ratio": "ratio",
    "last_first": "last runs / first", "wrong_rows": "wrong rows", "quarantined": "refused rows kept",
}  # fmt: skip


def costs(samples: Sequence[Sample]) -> str:
    """The summary as Markdown; columns in which nobody has anything are left out."""
    rows = []
    for row in summary(samples):
        failed = (
            {"wrong_rows": f"{row['failed']} of {row['runs']} runs failed"} if row["failed"] else {}
        )
        rows.append({**row, "rss_mb": f"{row['rss_mb']:.0f}", **failed})
    kept = {
        name: title for name, title in _TITLES.items() if any(row[name] is not None for row in rows)
    }
    return _table(rows, kept)


def _table(rows: Sequence[Row], titles: Mapping[str, str]) -> str:
    """Markdown with a column for each title, named by its key in the rows."""
    lines = [f"| {' | '.join(titles.values())} |", f"| {' | '.join('---' for _ in titles)} |"]
    lines += [f"| {' | '.join(_cell(row.get(name)) for name in titles)} |" for row in rows]
    return "\n".join(lines)


def _cell(value: object) -> str:
    return "" if value is None else str(value)


def findings(found: Sequence[Finding]) -> str:
    """What a work concludes, as Markdown."""
    return "\n\n".join(
        f"{f.title}:\n\n{_table(f.rows, {name: name for name in f.rows[0]})}"
        for f in found
        if f.rows
    )


def section(work: Work, samples: Sequence[Sample], facts: Mapping[str, object]) -> str:
    """All that is said of a work."""
    about = "\n".join(
        f"- {c.name}: {c.note}"
        for c in work.contenders
        if any(s.contender == c.name for s in samples)
    )
    told = ", ".join(f"{key} {value}" for key, value in facts.items())
    closing = f"Medians of whole processes in one session: {told}."
    parts = (costs(samples), findings(work.findings(samples)), about, closing)
    return _placeless("\n\n".join(part for part in parts if part))


def publish(work: Work, samples: Sequence[Sample], facts: Mapping[str, object]) -> None:
    """Write the JSON with all samples, the pictures, and the section of docs/benchmark-results.md,
    which links both.
    """
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{work.name}.json").write_text(_kept(work, samples, facts))
    linked = f"Every run: [{work.name}.json](../benchmarks/results/{work.name}.json)."
    shown = [_picture(name, svg) for name, svg in work.pictures(samples).items() if svg]
    replace_section(
        PAGE, work.name, "\n\n".join([f"{section(work, samples, facts)} {linked}", *shown])
    )


def _kept(work: Work, samples: Sequence[Sample], facts: Mapping[str, object]) -> str:
    """The JSON: facts and summaries, then every sample, one on a line."""
    found = [asdict(finding) for finding in work.findings(samples)]
    content: dict[str, object] = {"benchmark": work.name, **facts}
    content |= {
        "summary": summary(samples),
        "findings": found,
        "samples": [_sample(one) for one in samples],
    }
    lines = [f"  {json.dumps(key)}: {_value(value)}" for key, value in content.items()]
    return _placeless("{\n" + ",\n".join(lines) + "\n}\n")


def _value(value: object) -> str:
    if not isinstance(value, list) or not value:
        return json.dumps(value, ensure_ascii=False)
    return (
        "[\n" + ",\n".join(f"    {json.dumps(one, ensure_ascii=False)}" for one in value) + "\n  ]"
    )


def _sample(one: Sample) -> Row:
    """A sample, flat and rounded; what it has not is left out."""
    known = {"wrong_rows": one.wrong_rows, "quarantined": one.quarantined, "verdict": one.verdict}
    facts = {name: round(value, 2) for name, value in one.facts.items()}
    told = {name: value for name, value in known.items() if value} | (
        {"facts": facts} if facts else {}
    )
    return {
        "contender": one.contender,
        "kind": one.kind,
        "number": one.number,
        **asdict(one.cost),
        **told,
    }


def _placeless(text: str) -> str:
    """The text without paths of this machine, such as errors name them."""
    return re.sub(r"(?<![\w.\-)])(?:file:)?(?:/[\w.@+\-]+){2,}/?", "(a path)", text)


def _picture(name: str, svg: str) -> str:
    PICTURES.mkdir(exist_ok=True)
    (PICTURES / f"{name}.svg").write_text(svg)
    return f"![{name.replace('-', ', ')}](pictures/{name}.svg)"


def replace_section(page: Path, name: str, text: str) -> None:
    """Put text between a section's two marks, which are added at the end of the page if they are
    not there.
    """
    begin, end = f"<!-- bench {name}: begin -->", f"<!-- bench {name}: end -->"
    before = page.read_text()
    if begin not in before:
        before = f"{before.rstrip()}\n\n## {name.capitalize()}\n\n{begin}\n{end}\n"
    head, rest = before.split(begin, 1)
    page.write_text(f"{head}{begin}\n{text}\n{end}{rest.split(end, 1)[1]}")
