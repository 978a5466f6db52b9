"""kill -9 in every gap of a withdrawal: it counts nowhere or entirely, and the next one is right.

As a program, `test_withdrawal_crash.py STEP HOME...`: drain each lake and withdraw what fails; at
STEP (none: `-`) JVM and Python die at once, and HOME/fired names the JVM.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from draindown.audit.recount import audit
from draindown.drill.process import gone
from draindown.flow import quarantine
from draindown.flow.quarantine import Filter
from draindown.runs.report import StepReport
from draindown.spark.job.main import attempt
from draindown.spark.runs.withdrawal import withdraw
from draindown.spark.session import session
from tests.landing import Landing

ROOT = Path(__file__).parents[2]
NAME = "expect_column_values_to_be_between:a"
SUITE: dict[str, Any] = {
    "name": "s",
    "expectations": [{"type": NAME.partition(":")[0], "kwargs": {"column": "a", "min_value": 0}}],
    "meta": {},
}
WITHDRAWN = {"quarantined": 0, "merged": 2, "recorded": 2}
"""What counts after a crash at each step, before anything else ran."""


def work(step: str, homes: list[Path]) -> int:
    """The program that dies."""
    spark = session("faults", master="local[2]", size="small")
    jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr, operator]

    for home in homes:
        landing = Landing(home)

        def reached(now: str, home: Path = home) -> None:
            if now == step:
                (home / "fired").write_text(str(jvm))
                os.kill(jvm, signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)

        def both(landing: Landing = landing, reached: Any = reached) -> StepReport:
            landing.drain(spark)
            request = landing.request("withdraw", suite=SUITE)
            return withdraw(request, spark, NAME, agreed=lambda plan: True, reached=reached)

        _, code = attempt(landing.request(), lambda _stop, both=both: both())  # type: ignore[misc]
        if code:
            return int(code)
    return 0


def run(step: str, *homes: Path) -> int:
    """The program's exit code."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    command = [sys.executable, __file__, step, *map(str, homes)]
    with (homes[0] / f"{step}.log").open("wb") as out:
        return subprocess.run(
            command,
            env=os.environ | {"PYTHONPATH": path},
            cwd=homes[0],
            stdout=out,
            stderr=out,
            timeout=280,
        ).returncode


def lake(home: Path) -> Path:
    """Two rows that fail, one that doesn't."""
    landing = Landing(home)
    landing.deliver(
        *[json.dumps({"id": key, "seq": 5, "a": a}) for key, a in (("x", -1), ("y", -2), ("z", 3))]
    )
    return home


def clean(home: Path) -> Landing:
    landing = Landing(home)
    found = audit(landing.spec, "f", root=home)
    assert found.clean, f"{home.name}: {found}"
    landing.totals()
    return landing


def killed(home: Path) -> Path:
    step = home.name
    assert run(step, lake(home)) == -signal.SIGKILL
    assert gone(int((home / "fired").read_text()))  # until then it holds the lease
    landing = clean(home)
    assert quarantine.counts(landing.layout).open == WITHDRAWN[step]
    assert len(landing.rows()) == 3 - WITHDRAWN[step]
    assert len(landing.quarantine()) == 2  # in the first gap, too
    newer = [json.dumps({"id": "x", "seq": 5, "a": -1}), json.dumps({"id": "y", "seq": 6, "a": 1})]
    landing.deliver(*newer, name="later.json")
    return home


@pytest.mark.campaign
@pytest.mark.timeout(1200)
def test_a_withdrawal_that_was_killed_in_any_gap_is_right_afterwards(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        homes = list(pool.map(killed, [tmp_path / step for step in WITHDRAWN]))
    assert run("-", *homes) == 0, (homes[0] / "-.log").read_text()[-4000:]
    for home in homes:
        landing = clean(home)
        held = sorted((row["id"], row["seq"], row["a"]) for row in landing.rows())
        kept = {json.loads(row["raw"])["id"] for row in quarantine.listed(landing.layout, Filter())}
        # where nothing had been withdrawn, the newer row of y came before it could be
        assert kept == ({"x"} if home.name == "quarantined" else {"x", "y"})
        assert held == [("y", 6, 1), ("z", 5, 3)]
        [batch] = [row for row in landing.ledger() if row["kind"] == "withdraw"]
        assert (batch["batch"], batch["deleted"]) == (0, len(kept))


if __name__ == "__main__":
    sys.exit(work(sys.argv[1], [Path(name) for name in sys.argv[2:]]))
