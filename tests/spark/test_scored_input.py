"""Bad input by number, a lake per format: drained, repaired, drained again, looked at with
`deltalake`, and scored.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from draindown.audit.recount import audit
from draindown.base.exits import Exit
from draindown.cli.program import main
from draindown.lake.table import Table
from tests.scores import Trial, conclude
from tests.spark.inputs import LAKES, Delivery

Make = Callable[[Mapping[str, Any]], Any]
pytestmark = pytest.mark.campaign
STRAYS = ("k=1/not-mine.json", "loop.json", "directory.json", "pipe.json")


@dataclass
class Seen:
    """A lake at one moment: rows by id (each as often as it stands there), quarantined records, parked
    files.
    """

    rows: list[dict[str, Any]]
    refused: dict[tuple[str, int], tuple[str, str | None]]
    parked: dict[str, str]


@dataclass
class Story:
    """What happened to a lake: how its drains ended, what they told, and what was there after the
    first and last.
    """

    name: str
    here: Any
    deliveries: list[Delivery]
    codes: list[tuple[Exit, str]] = field(default_factory=list)
    told: dict[str, str] = field(default_factory=dict)
    first: Seen | None = None
    last: Seen | None = None
    residues: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def drain(self) -> None:
        started = time.monotonic()
        report, code = self.here.attempt()
        self.seconds += time.monotonic() - started
        self.codes.append((code, str(report.outcome if code == Exit.DONE else report.error)))
        self.told |= {Path(finding.subject).name: finding.detail for finding in report.findings}

    def look(self) -> Seen:
        refused = {
            place: (row["reason"], row["field"]) for place, row in self.here.refused().items()
        }
        return Seen(
            self.here.rows() if self.here.layout.tables.target.exists else [],
            refused,
            self.here.parked(),
        )


def tell(name: str, here: Any) -> Story:
    """Deliver everything, drain, repair what was kept out, drain, and drain once more."""
    story = Story(name, here, LAKES[name][1](datetime.now(UTC)))
    for age, delivery in enumerate(story.deliveries):
        (here.landing / delivery.name).parent.mkdir(exist_ok=True)
        path = here.land(delivery.name, delivery.content)
        os.utime(path, (10**9 + age, 10**9 + age))
    if name == "json":
        _strays(here)
    story.drain()
    story.first = story.look()
    _repair(story)
    story.drain()
    story.drain()
    story.last = story.look()
    story.residues = [str(residue) for residue in audit(here.spec, "f", root=here.home).residues]
    return story


def _strays(here: Any) -> None:
    (here.landing / "k=1").mkdir()
    here.land("k=1/not-mine.json", b'{"id":1}\n')
    (here.landing / "directory.json").mkdir()
    (here.landing / "loop.json").symlink_to(here.landing / "loop.json")
    os.mkfifo(here.landing / "pipe.json")


def _repair(story: Story) -> None:
    """What the documents say: put the right file there; then have it looked at again, or discard
    the old name.
    """
    here = story.here
    for delivery in story.deliveries:
        if delivery.repaired:
            name, content, _ = delivery.repaired
            (here.landing / delivery.name).unlink()
            here.land(name, content)
    again = [
        d.name for d in story.deliveries if d.parked and d.repaired and d.repaired[0] == d.name
    ]
    here.write_pipeline()
    moved = [
        d.name for d in story.deliveries if d.parked and d.repaired and d.repaired[0] != d.name
    ]
    for verb, names in (("retry", again), ("discard --note renamed", moved)):
        paths = [word for name in names for word in ("--file", str(here.landing / name))]
        command = ["--root", str(here.home), "input", *verb.split(), "p", *paths, "--yes"]
        assert not names or main(command) == 0


def judge(story: Story) -> list[Trial]:
    """One trial per case of the lake."""
    cases: dict[str, list[Delivery]] = {}
    for delivery in story.deliveries:
        cases.setdefault(delivery.case, []).append(delivery)
    control = cases.pop("B0")
    trials = [_judge(story, case, found, control) for case, found in cases.items()]
    return trials + ([_judge_strays(story)] if story.name == "json" else [])


def _judge(story: Story, case: str, found: list[Delivery], control: list[Delivery]) -> Trial:
    trial = Trial(case, story.name, f"{len(found)} files of it", seconds=round(story.seconds, 1))
    trial.fired = _proof(story, found)
    trial.loud = any(code != Exit.DONE for code, _ in story.codes)
    first, last = story.first, story.last
    assert first and last
    trial.promise(
        "the run is green", story.codes[0][0] == Exit.DONE, mended=story.codes[-1][0] == Exit.DONE
    )
    trial.promise(
        "good rows land, once", _land(story, first, found), mended=_land(story, last, found)
    )
    if any(d.refused for d in found):
        trial.promise(
            "each bad record is in quarantine", _refused(first, found), mended=_refused(last, found)
        )
    if any(d.kept_out for d in found):
        trial.promise(
            "kept out alone, by name", all(_named(story, first, d) for d in found if d.kept_out)
        )
        trial.promise("after repair it is drained, once", _repaired(story, last, found))
    trial.promise(
        "other files are drained", _land(story, first, control), mended=_land(story, last, control)
    )
    trial.promise("sums equal the raw bytes", _sums(story))
    trial.promise("audit clean", not story.residues)
    trial.promise("next run clean", story.codes[-1] == (Exit.DONE, "idle"))
    return trial


def _judge_strays(story: Story) -> Trial:
    trial = Trial(
        "B29", story.name, "4 things that are no files to read", seconds=round(story.seconds, 1)
    )
    there = [name for name in STRAYS if os.path.lexists(story.here.landing / name)]
    trial.fired = f"{len(there)} of {len(STRAYS)} lie there"
    trial.promise("the run is green", story.codes[0][0] == Exit.DONE)
    trial.promise(
        "each is named in the report",
        {"k=1", "loop.json", "directory.json", "pipe.json"} <= set(story.told),
    )
    trial.promise("next run clean", story.codes[-1] == (Exit.DONE, "idle"))
    return trial


def _proof(story: Story, found: list[Delivery]) -> str:
    """How many files of the case draindown saw with exactly these bytes, or named."""
    layout, seen = story.here.layout, set()
    for path in (layout.tables.intake(1).path, layout.tables.parked.path):
        if Table(path).exists:
            seen |= {row["sha256"] for row in Table(path).query("select sha256 from t").to_pylist()}
    met = [d for d in found if hashlib.sha256(d.content).hexdigest() in seen or _told(story, d)]
    return f"{len(met)} of {len(found)} files by hash or name" if len(met) == len(found) else ""


def _told(story: Story, delivery: Delivery) -> bool:
    escaped = delivery.name.encode("unicode_escape").decode()
    return bool(delivery.told) and delivery.told in story.told.get(escaped, "")


def _named(story: Story, seen: Seen, delivery: Delivery) -> bool:
    return (
        _told(story, delivery)
        if delivery.told
        else seen.parked.get(delivery.name) == delivery.parked
    )


def _key(story: Story) -> str:
    return {"text": "value", "keyed": "k"}.get(story.name, "id")


def _land(story: Story, seen: Seen, found: list[Delivery]) -> bool:
    """Every row that must be there is, once, with the values it must hold."""
    key = _key(story)
    times = Counter(row[key] for row in seen.rows)
    held = {row[key]: row for row in seen.rows}
    wanted = {known: row for delivery in found for known, row in delivery.lands.items()}
    return all(times[known] == 1 and _holds(held[known], row) for known, row in wanted.items())


def _holds(row: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    for name, value in wanted.items():
        there = row[name]
        if name == "_rescued_data":
            there = {k: v for k, v in json.loads(there or "{}").items() if v is not None}
        if there != value:
            return False
    return True


def _refused(seen: Seen, found: list[Delivery]) -> bool:
    for delivery in found:
        name = Path(delivery.name).name
        if {at: why for (file, at), why in seen.refused.items() if file == name} != dict(
            delivery.refused
        ):
            return False
    return True


def _repaired(story: Story, seen: Seen, found: list[Delivery]) -> bool:
    times = Counter(row[_key(story)] for row in seen.rows)
    again = [known for delivery in found if delivery.repaired for known in delivery.repaired[2]]
    still = {delivery.name for delivery in found} & set(seen.parked)
    return not still and all(times[known] == 1 for known in again)


def _sums(story: Story) -> bool:
    """The ledger's sums close, and its records are those in the bytes: of each file read, and of
    each repaired one.
    """
    sums = story.here.sums()
    raw = sum(delivery.records for delivery in story.deliveries)
    again = sum(len(delivery.repaired[2]) for delivery in story.deliveries if delivery.repaired)
    return bool(sums["records"] == raw + again)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", LAKES)
def test_bad_input_is_accounted_for(landing: Make, name: str) -> None:
    story = tell(name, landing(LAKES[name][0]))
    nothing_else = _nothing_else(story)
    trials = judge(story)
    for trial in trials:
        trial.promise("nothing else is in the table", nothing_else)
    print(story.name, story.codes, story.seconds, story.residues)
    conclude(trials)


def _nothing_else(story: Story) -> bool:
    assert story.last
    wanted = {known for delivery in story.deliveries for known in delivery.lands}
    wanted |= {
        known
        for delivery in story.deliveries
        if delivery.repaired
        for known in delivery.repaired[2]
    }
    return {row[_key(story)] for row in story.last.rows} == wanted
