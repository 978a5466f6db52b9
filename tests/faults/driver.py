"""A driver that dies or waits where it is told. `driver.py PLAN`, a JSON list of {home, flow, fault, act}.

Each entry is drained in turn. `fault` is [step, n]: that step of the n-th batch. What steps and acts there are, and
which files they leave in `home`, is said in `draindown.spark.strike`, which does it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from draindown.spark.session import session
from draindown.spark.strike import drained
from tests.landing import Landing


def main(plan: list[dict[str, Any]]) -> int:
    """Drain everything in the plan; the worst exit code."""
    spark = session("faults", master="local[2]", short=True)
    codes = []
    for entry in plan:
        home = Path(entry["home"])
        request = Landing(home, **entry["flow"]).request()
        step, nth = entry.get("fault") or (None, 1)
        place = {"place": [step, nth - 1]} if step else {}
        codes.append(drained(spark, request, home, entry | place))
        print(home.name, int(codes[-1]), flush=True)
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(json.loads(Path(sys.argv[1]).read_text())))
