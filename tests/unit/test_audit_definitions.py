"""Which columns were there when a record was read, by the batches that read it: as a plain loop
says it.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from draindown.audit.context import AuditContext
from draindown.audit.definitions import Definitions
from draindown.ledger.inputs import Input
from draindown.ledger.rows import BatchRow
from tests.flowfiles import request

_COLUMNS = ["id", "n", "x", "y"]


def _context(
    root: Path, batches: list[tuple[list[str], list[tuple[str, int, int]]]]
) -> AuditContext:
    asked = request(root)
    flow = asked.flow_spec.model_copy(update={"columns": dict.fromkeys(_COLUMNS)})
    context = AuditContext(flow, asked.layout, root, lambda *_: None)
    for at, (columns, ranges) in enumerate(batches):
        said = json.dumps(
            {"keys": ["id"], "sequence_by": ["n"], "tracked": columns[:1], "untracked": columns[1:]}
        )
        row = BatchRow(
            "p",
            "f",
            1,
            at,
            "r",
            kind="replay" if at % 2 else "drain",
            history=said,
            table_version=at,
        )
        context.batches.append(row)
        context.inputs[row.place] = [
            Input(unit, start, until, 0, 0) for unit, start, until in ranges
        ]
    context.logs = {"twice": 2}
    return context


@pytest.mark.parametrize("seed", range(20))
def test_a_column_came_later_than_a_record_if_no_batch_knew_it_that_read_the_record(
    tmp_path: Path, seed: int
) -> None:
    draw, batches = Random(seed), []
    for _ in range(draw.randint(1, 6)):
        starts = [
            (draw.choice(["a", "b", "twice"]), draw.randrange(12))
            for _ in range(draw.randint(0, 4))
        ]
        columns = [name for name in ("x", "y") if draw.random() < 0.6]
        batches.append(
            (columns, [(unit, start, start + draw.randint(0, 5)) for unit, start in starts])
        )
    found = Definitions(_context(tmp_path, batches))
    assert found.newest is not None and found.newest["tracked"] == batches[-1][0][:1]
    for unit in ("a", "b", "twice"):
        for position in range(18):
            read = [
                had
                for had, ranges in batches
                if any(u == unit and s <= position < e for u, s, e in ranges)
            ]
            lacked = [name for name in ("x", "y") if any(name not in had for had, _ in batches)]
            later = [
                name for name in lacked if unit == "twice" or not any(name in had for had in read)
            ]
            assert found.later(unit, position) == tuple(later)


def test_batches_that_wrote_down_nothing_tell_nothing(tmp_path: Path) -> None:
    context = _context(tmp_path, [])
    context.batches.append(BatchRow("p", "f", 1, 0, "r"))
    found = Definitions(context)
    assert found.newest is None and found.later("a", 3) == ()
