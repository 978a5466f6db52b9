"""Lakes that were struck by a fault, beside one that was not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from draindown.drill import process
from draindown.drill.process import end, gone
from tests.landing import Landing

__all__ = ["FLOW", "ROOT", "end", "fired", "gone", "heal", "lake", "start", "state"]

ROOT = Path(__file__).parents[2]
FLOW: dict[str, Any] = {"source": {"max_files_per_trigger": 1}, "rules": {"sane": "a is null or a >= 0"}}
_PATIENCE = 240


def lake(home: Path, batches: int = 2) -> Landing:
    """A landing flow with files waiting, one batch each: changes, deletes, ties, refused rows in all of them."""
    landing = Landing(home, **FLOW)
    for batch in range(1, batches + 1):
        rows: list[dict[str, Any]] = [
            {"id": f"k{n % 7}", "seq": batch + n % 3, "a": n - 1, "b": str(n)} for n in range(20)
        ]
        rows += [{"id": f"k{n}", "seq": 2 + batch, "op": "d"} for n in range(batch, 7, 3)]
        landing.deliver(*[json.dumps(row) for row in rows], "no json", "", name=f"{batch}.json")
        os.utime(landing.landing / f"{batch}.json", (batch, batch))
    return landing


def start(home: Path, **fault: Any) -> subprocess.Popen[bytes]:
    """A driver at work on one lake; it and all it starts are a process group."""
    return _start(home / "plan.json", [{"home": str(home), "flow": FLOW, **fault}], home / "driver.log")


def heal(homes: Sequence[Path], where: Path) -> None:
    """Drain all lakes in one fresh process."""
    driver = _start(where / "heal.json", [{"home": str(home), "flow": FLOW} for home in homes], where / "heal.log")
    assert driver.wait(_PATIENCE) == 0, (where / "heal.log").read_text()[-4000:]


def _start(plan: Path, entries: list[dict[str, Any]], log: Path) -> subprocess.Popen[bytes]:
    plan.write_text(json.dumps(entries))
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    with log.open("wb") as out:
        return subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "faults" / "driver.py"), str(plan)],
            env=os.environ | {"PYTHONPATH": path},
            cwd=plan.parent,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )


def fired(home: Path, driver: subprocess.Popen[bytes]) -> int:
    """Wait until the fault struck; the JVM's process id."""
    jvm = process.struck(home, driver, _PATIENCE)
    assert jvm is not None, (home / "driver.log").read_text()[-4000:]
    return jvm


def state(home: Path) -> dict[str, Any]:
    """All that a lake says, without what differs from run to run: times, and where the lake is."""
    landing = Landing(home, **FLOW)
    rows = Counter(tuple((k, v) for k, v in row.items() if k != "_changed_at") for row in landing.rows())
    stones = Counter((row["id"], row["seq"], row["batch"]) for row in landing.tombstones())
    refused = Counter(
        (Path(row["file"]).name, row["position"], row["reason"], row["raw"]) for row in landing.quarantine()
    )
    batches = [(row["batch"], row["records"], row["applied"], row["superseded"]) for row in landing.ledger()]
    return {"rows": rows, "tombstones": stones, "quarantine": refused, "batches": batches, "totals": landing.totals()}
