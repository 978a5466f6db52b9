"""Drain one lake in a process of its own and measure its memory: `sizes.py HOME`, its flow in
HOME/flow.json.

Writes HOME/taken.json: exit code, error, seconds, and the most memory that Python and the JVM had
at once, in bytes.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path

from draindown.spark.job.main import attempt
from draindown.spark.runs.drain import drain
from draindown.spark.session import session
from tests.landing import Landing


def peak(pid: int) -> int:
    """The most memory a process ever had in use, in bytes."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) * 1024


def main(home: Path) -> int:
    """Drain what waits under `home`."""
    landing = Landing(home, **json.loads((home / "flow.json").read_text()))
    spark = session("sizes", master="local[2]", size="small")
    jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr, operator]
    started = time.monotonic()
    request = landing.request()
    report, code = attempt(request, lambda stop: drain(request, spark, stop=stop, progress=print))
    taken = {
        "code": int(code),
        "error": report.error,
        "seconds": round(time.monotonic() - started, 1),
    }
    taken |= {"python": peak(os.getpid()), "jvm": peak(jvm)}
    (home / "taken.json").write_text(json.dumps(taken))
    return int(code)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
