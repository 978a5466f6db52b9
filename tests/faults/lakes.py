"""Lakes that were struck by a fault, beside one that was not; drivers at work on them; and what
should be in them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draindown.audit.recount import audit
from draindown.doctor.examination import examine
from draindown.drill.process import gone
from tests.faults.reader import Fingerprint, Reader, whole
from tests.faults.trial import Trial
from tests.landing import Landing
from tests.model import Change, fold

ROOT = Path(__file__).parents[2]
FLOW: dict[str, Any] = {
    "source": {"max_files_per_trigger": 1},
    "rules": {"sane": "a is null or a >= 0"},
    "maintenance": {
        "copy_on_write": 0
    },  # as large tables are written, and so that there is something to compact
}
PLACES = ("first", "middle", "last")
BATCHES = len(PLACES)
_PATIENCE = 240

_HISTORY = ("_changed_at", "_arrived_at", "_origin")


def lake(home: Path, batches: int = BATCHES, flow: dict[str, Any] = FLOW) -> Landing:
    """A landing flow with files waiting, one batch each: changes, deletes, ties, quarantined rows in
    all of them.
    """
    landing = Landing(home, **flow)
    for batch in range(1, batches + 1):
        deliver(landing, batch)
    return landing


def deliver(landing: Landing, batch: int, name: str | None = None) -> Path:
    """Put the file of one batch where it is found."""
    rows: list[dict[str, Any]] = [
        {"id": f"k{n % 7}", "seq": batch + n % 3, "a": n - 1, "b": str(n), "region": f"r{batch}"}
        for n in range(20)
    ]
    rows += [{"id": f"k{n}", "seq": 2 + batch, "op": "d"} for n in range(batch, 7, 3)]
    path = landing.deliver(
        *[json.dumps(row) for row in rows], "no json", "", name=name or f"{batch}.json"
    )
    os.utime(path, (batch, batch))
    return path


def witness(home: Path) -> Landing:
    """A flow beside that of the lake at `home`, over the same files: it appends, so nothing done
    twice can hide.
    """
    source = FLOW["source"] | {"files": str(home / "landing" / "*")}
    return Landing(home / "witness", pipeline="w", **(FLOW | {"source": source, "target": {}}))


@dataclass(frozen=True)
class Oracle:
    """What the raw files mean, in plain Python: live rows (id: seq, a, b), dead keys, refused
    lines.

    `appended`: what the witness holds: rows, and their sums of seq and a.
    """

    live: dict[str, tuple[int, int | None, str | None]]
    dead: dict[str, int]
    refused: int
    appended: tuple[int, int, int]


def oracle(files: Iterable[Path]) -> Oracle:
    """The result of these files, whatever their order."""
    changes, refused, appended = [], 0, [0, 0, 0]
    for line in (line for file in files for line in file.read_text().splitlines() if line.strip()):
        try:
            row = json.loads(line)
        except ValueError:
            refused += 1
            continue
        a, delete = row.get("a"), row.get("op") == "d"
        if a is None or a >= 0:
            appended = [appended[0] + 1, appended[1] + row["seq"], appended[2] + (a or 0)]
        elif not delete:
            refused += 1
            continue
        content = {name: row.get(name) for name in ("op", "a", "b", "part", "region")}
        changes.append(Change((row["id"],), row["seq"], delete, content))
    live, dead = fold(changes)
    rows = {str(key): (c.sequence, c.content["a"], c.content["b"]) for (key,), c in live.items()}
    return Oracle(rows, {str(key): at for (key,), at in dead.items()}, refused, tuple(appended))  # type: ignore[arg-type]


def against_oracle(landing: Landing, beside: Landing | None = None) -> list[str]:
    """What the tables hold other than the files at the source mean."""
    expected, found = oracle(sorted(landing.landing.iterdir())), []
    rows = landing.rows("id, seq, a, b")
    if len({row["id"] for row in rows}) != len(rows):
        found.append("a key stands twice")
    if {row["id"]: (row["seq"], row["a"], row["b"]) for row in rows} != expected.live:
        found.append("rows are not those of the oracle")
    if memory(landing) != expected.dead:
        found.append("dead keys are not those of the oracle")
    if beside:
        rows = beside.rows("seq, a")
        sums = (len(rows), sum(row["seq"] for row in rows), sum(row["a"] or 0 for row in rows))
        if sums != expected.appended:
            found.append(f"the witness holds {sums} instead of {expected.appended}")
    return found


def memory(landing: Landing) -> dict[str, int]:
    """When each dead key died. What else is remembered depends on the order of batches: a delete
    that lost at once.
    """
    live, dead = {row["id"] for row in landing.rows("id")}, {}
    for row in landing.tombstones():
        if row["id"] not in live:
            dead[row["id"]] = max(row["seq"], dead.get(row["id"], row["seq"]))
    return dead


def contents(landing: Landing) -> dict[str, Any]:
    """The tables without what differs from run to run, nor by how often or in which order the input
    was read.
    """
    rows = Counter(
        tuple((k, v) for k, v in row.items() if k not in _HISTORY) for row in landing.rows()
    )
    refused = Counter(
        (*place, row["reason"], row["raw"]) for place, row in landing.refused().items()
    )
    return {"rows": rows, "tombstones": memory(landing), "quarantine": refused}


def state(landing: Landing) -> dict[str, Any]:
    """All that a lake says, without what differs from run to run: times, and where the lake is."""
    stones = Counter((row["id"], row["seq"], row["_batch"]) for row in landing.tombstones())
    batches = [
        (row["batch"], row["records"], row["applied"], row["superseded"])
        for row in landing.ledger()
    ]
    return contents(landing) | {
        "tombstones": stones,
        "batches": batches,
        "totals": landing.totals(),
    }


@dataclass(frozen=True)
class Control:
    """A lake that nothing ever happened to: what it and its witness hold, and each whole state of
    either.
    """

    home: Path
    keyed: dict[str, Any]
    contents: dict[str, Any]
    appended: dict[str, Any]
    whole: Sequence[Fingerprint]
    whole_appended: Sequence[Fingerprint]
    seconds: float


def control(home: Path, drain: Callable[[Landing], object], flow: dict[str, Any] = FLOW) -> Control:
    """Make and drain one."""
    landing = lake(home, flow=flow)
    started = time.monotonic()
    drain(landing)
    drain(witness(home))
    seconds = time.monotonic() - started
    keyed = state(landing)
    assert keyed["totals"]["quarantined"] and keyed["tombstones"] and keyed["rows"]
    assert not wrong(landing) and not against_oracle(landing, witness(home))
    states = (
        whole(landing.layout.tables.target.path),
        whole(witness(home).layout.tables.target.path),
    )
    return Control(home, keyed, contents(landing), state(witness(home)), *states, seconds)


def wrong(landing: Landing) -> list[str]:
    """What audit and doctor say about a lake; that they can't look is a finding too."""
    try:
        return _findings(landing)
    except Exception as error:  # noqa: BLE001 - a lake that is left broken may raise anything
        return [f"audit or doctor failed: {type(error).__name__}: {str(error)[:200]}"]


def _findings(landing: Landing) -> list[str]:
    residues = audit(landing.spec, "f", root=landing.home).residues
    found = [f"audit: {residue.kind} {residue.where}" for residue in residues]
    found += [
        f"doctor: {symptom.code}"
        for symptom in examine(landing.request()).symptoms
        if symptom.level == "wrong"
    ]
    return found


def hold(
    trial: Trial, landing: Landing, to: Control, *, again: bool = False, beside: bool = False
) -> None:
    """Hold a lake that recovered against the control. `again`: all input was read again by a new
    generation.
    """
    _equal(trial, landing, to.contents if again else to.keyed)
    if beside:
        _equal(trial, witness(landing.home), to.appended, "witness: ")
    for words in against_oracle(landing, witness(landing.home) if beside else None):
        trial.promise(words, False)
    found = wrong(landing) + (wrong(witness(landing.home)) if beside else [])
    for words in found:
        trial.promise(words, False)
    if not found:
        trial.promise("audit and doctor clean", True)


def _equal(trial: Trial, landing: Landing, expected: dict[str, Any], who: str = "") -> None:
    try:
        found = state(landing) if "totals" in expected else contents(landing)
        landing.totals()
    except AssertionError as error:
        trial.promise(f"{who}ledger closes: {error}"[:300], False)
        return
    for what in expected:
        trial.promise(f"{who}{what} as in the control", found[what] == expected[what])
    trial.promise(f"{who}ledger closes", True)


def read_whole(
    trial: Trial, reader: Reader, landing: Landing, to: Control, *, beside: bool = False
) -> None:
    """Hold what a reader saw against the states of the control."""
    torn = reader.torn(landing.layout.tables.target.path, to.whole)
    if beside:
        torn += reader.torn(witness(landing.home).layout.tables.target.path, to.whole_appended)
    for words in torn:
        trial.promise(words, False)
    if not torn:
        trial.promise("a reader saw whole batches only", True)


class Driver:
    """A driver process at work on one lake or several; it and all it starts are a process group."""

    program: Sequence[str] = (str(ROOT / "tests" / "faults" / "driver.py"),)

    def __init__(self, where: Path, *entries: dict[str, Any], **environ: str) -> None:
        where.mkdir(parents=True, exist_ok=True)
        self.where, self.log = where, where / "driver.log"
        self.homes = [Path(entry.get("notes") or entry["home"]) for entry in entries]
        for name in ("fired", "go", "ready", "outcome.json"):
            for home in self.homes:
                (home / name).unlink(missing_ok=True)
        (where / "plan.json").write_text(json.dumps([{"flow": FLOW} | entry for entry in entries]))
        path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, *self.program, str(where / "plan.json")],
                env=os.environ | {"PYTHONPATH": path} | environ,
                cwd=where,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def wait(self, patience: float = _PATIENCE) -> int:
        """Its exit code, once it has ended."""
        return self.process.wait(patience)

    def fired(self, home: Path | None = None) -> int:
        """Wait until the fault struck; the JVM's process id."""
        self.until(lambda: ((home or self.homes[0]) / "fired").exists())
        return int(((home or self.homes[0]) / "fired").read_text())

    def ready(self) -> None:
        """Wait until its Spark session is there."""
        self.until(lambda: (self.homes[0] / "ready").exists())

    def until(self, true: Callable[[], bool]) -> None:
        """Wait for something to become true while the driver lives; one that takes too long is
        ended.
        """
        until = time.monotonic() + _PATIENCE
        while not true():
            ended = self.process.poll() is not None and not true()
            late = not ended and time.monotonic() >= until
            if late:  # else it would work on beside the next test
                self.signal(signal.SIGKILL)
                self.wait()
            assert not ended and not late, self.log.read_text()[-4000:]
            time.sleep(0.02)

    def outcome(self, home: Path | None = None) -> dict[str, Any]:
        """How an entry ended."""
        return dict(json.loads(((home or self.homes[0]) / "outcome.json").read_text()))

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *given: object) -> None:
        """End it where a test failed: a stopped one would stay for good."""
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)
            self.wait()

    def signal(self, number: int) -> None:
        """Send a signal to Python, JVM and workers at once."""
        os.killpg(self.process.pid, number)


def killed(trial: Trial, home: Path, place: tuple[str, int], **entry: Any) -> None:
    """Drain, be killed at the place, and prove it."""
    driver = Driver(home, {"home": str(home), "place": place, **entry})
    jvm = driver.fired()
    code = driver.wait(60)
    assert code == -signal.SIGKILL, driver.log.read_text()[-4000:]
    assert gone(jvm)
    trial.fired, step = f"exit {code}, no JVM left", place[0]
    trial.fired += f"; struck at `{step}` of batch {place[1]}"
    trial.ran(code)
