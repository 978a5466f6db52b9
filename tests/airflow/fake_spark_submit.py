"""Stands in for spark-submit: keeps its command line, writes the step's report, ends with the code
it is told.

Then it does the steps that the request names, as the job does. `calls` lists the steps for which a
driver was started, `did` all that drivers did. `FAKE_SUBMIT` names a directory:
`<flow>.<step>.code` holds the exit code, `<flow>.<step>.error` the error's code,
`<flow>.<step>.outcome` its outcome, `<flow>.<step>.sleep` makes it hang with a child of its own; it
leaves no report where there is `<flow>.<step>.silent`, and commits 200,000 rows where there is
`<flow>.<step>.committed`. It is killed within a step with `<flow>.<step>.dies`, and compacts after
a drain with `<flow>.joins`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from draindown.base.clock import now
from draindown.lake.documents import Document
from draindown.ledger.rows import BatchRow
from draindown.ledger.table import record
from draindown.recovery.replay import find
from draindown.runs.report import Backlog, CheckPart, CompactPart, DrainPart, Fused, StepReport
from draindown.runs.request import Request
from draindown.runs.starts import with_sums
from draindown.runs.step_lines import line
from draindown.runs.store import write


def main() -> int:
    home = Path(os.environ["FAKE_SUBMIT"])
    request = Request.decode(sys.argv[sys.argv.index("--request") + 1])
    with (home / "calls").open("a") as calls:
        calls.write(f"{request.flow}.{request.step}\n")
    code = do(home, request)
    for step in request.then if not code else ():
        after = request.following(step)
        if step == "compact" and not (home / f"{request.flow}.joins").exists():
            continue
        print(line({"step": step, "start": after.start, "outcome": "begun"}), flush=True)
        if do(home, after):
            break
    return code


def do(home: Path, request: Request) -> int:
    """Do one step as the files say. Returns its exit code."""
    name = f"{request.flow}.{request.step}"
    (home / f"{name}.argv").write_text(json.dumps(sys.argv))
    secrets = {
        name: len(word) for name, word in os.environ.items() if name.startswith("DRAINDOWN_SECRET_")
    }
    (home / f"{name}.secrets").write_text(json.dumps(secrets))
    with (home / "did").open("a") as did:
        did.write(f"{name}\n")
    if (home / f"{name}.dies").exists():
        Document(request.layout.start(request.run_id, request.step, request.start).at_work).write(
            {"pid": 1, "host": "vm"},
        )
        os.kill(os.getpid(), signal.SIGKILL)
    if (home / f"{name}.sleep").exists():
        child = subprocess.Popen(["sleep", "600"])
        (home / "pids").write_text(f"{os.getpid()} {child.pid}")
        time.sleep(600)
    print(f"the job's own words about {name}", flush=True)
    # what Spark says within the first moment may still go to the log of the step before
    if request.after:
        _await(Path(request.layout.start(request.run_id, request.step, request.start).log))
    print(f"WARN: Spark's words about {name}", file=sys.stderr, flush=True)
    code = int(_told(home, name, "code") or 0)
    error = _told(home, name, "error")
    if (home / f"{name}.committed").exists():
        row = BatchRow(
            "good", request.flow, 1, 0, request.run_id, records=200_000, inserted=200_000
        )
        record(request.layout, [replace(row, attempt=request.start, started_at=now())])
    at = now()
    part = {
        "drain": DrainPart(
            generation=1,
            replay=_replayed(request),
            before=Backlog(),
            after=Backlog(),
            batches=[{"max_sequence": "2013"}],
            totals={"records": 7},
        ),
        "check": CheckPart(version=3, published_after=3, changed_rows=7),
        "compact": CompactPart(evidence="none"),
    }[request.step]
    report = StepReport(
        pipeline=request.spec.pipeline,
        flow=request.flow,
        run_id=request.run_id,
        step=request.step,
        start=request.start,
        outcome="failed" if code else _told(home, name, "outcome") or "done",
        started_at=at,
        finished_at=now(),
        fused=Fused(drain=request.after, exit=code) if request.after else None,
        error={"code": error, "found": "f", "tried": "t", "changed": "c", "next": ["draindown x"]}
        if error
        else None,
        **{request.step: part},
    )
    if _told(home, name, "silent") is None:
        write(request.layout, *with_sums(request.layout, [report]))
    print(
        line({"step": request.step, "outcome": report.outcome, "error": report.error}), flush=True
    )
    return code


def _await(path: Path) -> None:
    until = time.monotonic() + 30
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.01)


def _replayed(request: Request) -> str:
    return find(request).asked if request.replay else ""


def _told(home: Path, name: str, what: str) -> str | None:
    path = home / f"{name}.{what}"
    return path.read_text() if path.exists() else None


sys.exit(main())
