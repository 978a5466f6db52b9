"""Whether the states of a fold go up to the newest batch of their table, whatever was lost or put
back of them.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from draindown.base.errors import TerminalError
from draindown.doctor.model import Desk
from draindown.doctor.tables import look_at_logs
from draindown.flow import integrity
from draindown.lake import delta
from draindown.lake.documents import Document
from draindown.lake.home import FlowHome
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import BatchRow
from draindown.spark.derived.snapshots import lack_newest
from draindown.spark.targets.delta_target import TableWriter
from tests.flowfiles import drained, request

_ROW = pa.table({"a": [1]})


class Lake:
    """A flow whose batches commit to the states, to the table and to the ledger, each of which can
    be put back.
    """

    def __init__(self, layout: FlowHome) -> None:
        self.layout, self.kept = layout, list[tuple[int, str, int]]()
        self.committed: tuple[int, str, int] | None = None
        self._version = 0

    def batch(self, generation: int, kind: str, batch: int, *, dies: bool = False) -> None:
        app = (self.layout.app_id(generation, "snapshots", kind), batch)
        if delta.append(self.layout.tables.snapshots, _ROW, app=app):
            self.kept.append((generation, kind, batch))
        if dies:
            return
        delta.append(
            self.layout.tables.target,
            _ROW,
            app=(self.layout.app_id(generation, "rows", kind), batch),
        )
        self._version += 1
        row = BatchRow(
            "p",
            "f",
            generation,
            batch,
            "r",
            kind=kind.partition(":")[0],
            table_version=self._version,
        )  # type: ignore[arg-type]
        ledger_table.record(self.layout, [row])
        self.committed = (generation, kind, batch)

    def has(self, generation: int, kind: str, batch: int) -> bool:
        """Whether the states have this batch, or a later one of its kind, which saw whether it was
        missing.
        """
        return any(one[:2] == (generation, kind) and one[2] >= batch for one in self.kept)

    def lose(self, commits: int) -> None:
        """Put the states back to what they were some commits ago."""
        log = Path(self.layout.tables.snapshots.path, "_delta_log")
        for _ in range(min(commits, len(self.kept))):
            (log / f"{DeltaTable(self.layout.tables.snapshots.path).version():020}.json").unlink()
            self.kept.pop()


@pytest.mark.parametrize("seed", range(6))
def test_states_without_the_newest_batch_are_seen_whatever_was_lost(
    tmp_path: Path, seed: int
) -> None:
    draw, it = Random(seed), Lake(request(tmp_path).layout)
    writer = TableWriter(it.layout, request(tmp_path).flow_spec, 1, 0)
    assert not lack_newest(writer), "nothing is there"
    next_batch, replayed, generation = {"drain": 0, "replay:a": 0, "replay:b": 100}, list[str](), 1
    for _ in range(10):
        if draw.random() < 0.1:
            generation, next_batch = generation + 1, {"drain": 0, "replay:a": 0, "replay:b": 100}
        kind = draw.choice(["drain", "drain", "replay:a", "replay:b"])
        if kind not in replayed and kind != "drain":
            replayed.append(kind)
            Document(f"{it.layout.replays}/{kind.partition(':')[2]}.json").write({})
        dies = draw.random() < 0.2
        it.batch(generation, kind, next_batch[kind], dies=dies)
        next_batch[kind] += not dies
        if draw.random() < 0.3:
            it.lose(draw.randint(1, 2))
        newest = it.committed
        expected = newest is not None and newest[0] == generation and not it.has(*newest)
        assert lack_newest(TableWriter(it.layout, writer.flow, generation, 0)) == expected


def test_damaged_states_are_removed_and_nothing_is_restored_or_reset(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    delta.append(asked.layout.tables.snapshots, _ROW)
    (Path(asked.layout.tables.snapshots.path) / "_delta_log" / f"{1:020}.json").write_bytes(b"")
    way = f"remove {asked.layout.tables.snapshots.path}, as a whole   # the next runs make its rows again"
    with pytest.raises(TerminalError) as caught:
        integrity.refuse(asked.layout)
    desk = Desk(asked.layout)
    look_at_logs(desk)
    assert list(caught.value.next) == [way] == [one.next for one in desk.symptoms]
    delta.append(asked.layout.tables.tombstones, _ROW)
    (Path(asked.layout.tables.tombstones.path) / "_delta_log" / f"{1:020}.json").write_bytes(b"")
    with pytest.raises(TerminalError) as caught:
        integrity.refuse(asked.layout)
    assert caught.value.next[0].startswith("draindown reset p/f ")
