"""Processors through real batches: thousands of histories, kept states, errors, and changed
code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from draindown.base.errors import TerminalError
from draindown.config.models import PipelineSpec
from draindown.lake.table import Table
from draindown.proof.behind import source_rows
from draindown.proof.compare import prove
from draindown.recovery import reset
from draindown.recovery.opening import Needs, open_flow
from draindown.spark.derived.snapshots import lack_newest
from draindown.spark.targets.delta_target import TableWriter
from draindown.spark.tuning import TUNING, Tuning
from tests.derivation import Derivation
from tests.landing import Injected
from tests.spark.test_derived_flow import START, Chain

HISTORIES = 2_000
BASKET = """\
class Basket:
    def process(self, state, rows):
        state, made = dict(state or {"n": 0, "last": []}), []
        for row in rows:
            if row["n"] == 666:
                raise ValueError("no such number")
            state["n"] += 1
            state["last"] = [*state["last"][-1:], row["n"]]
            if state["n"] % 2 == 0:
                made.append({"n": state["n"], "sum": sum(one or 0 for one in state["last"])})
        return made, state

    def running(self, state):
        return [{"n": -state["n"], "sum": state["last"][-1]}]
"""
PART: dict[str, Any] = {
    "class": "shop.Basket",
    "group_by": ["k"],
    "order_by": ["at", "seq"],
    "gap": "30 minutes",
    "columns": {"n": "bigint", "sum": "bigint"},
    "state": {"n": "bigint", "last": "array<bigint>"},
}
Row = tuple[Any, ...]
"""id, seq, k, at, n, x, noise."""


def write(home: Path, code: str = BASKET) -> None:
    path = home / "jobs" / "processors" / "shop.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(code)


def folding(home: Path, spark: SparkSession, tuning: Tuning = TUNING) -> Derivation:
    write(home)
    found = Derivation(home, spark, processor=PART)
    found.tuning = tuning
    found.spec.placed(home)
    return found


def model(rows: list[Row]) -> list[tuple[Any, ...]]:
    """The table by plain lists: rows sorted, cut at gaps, counted."""
    found: list[tuple[Any, ...]] = []
    for k in {row[2] for row in rows}:
        own = sorted((row for row in rows if row[2] == k and row[3] is not None), key=_place)
        cuts = [
            at for at in range(1, len(own)) if own[at][3] - own[at - 1][3] > timedelta(minutes=30)
        ]
        for begin, end in zip([0, *cuts], [*cuts, len(own)], strict=True):
            numbers = [row[4] for row in own[begin:end]]
            made = [
                (at + 1, sum(one or 0 for one in numbers[at - 1 : at + 1]))
                for at in range(1, len(numbers), 2)
            ]
            if numbers:
                made.append((-len(numbers), numbers[-1]))
                found += [
                    (k, own[begin][3], position, *row) for position, row in enumerate(made, 1)
                ]
    return found


def _place(row: Row) -> tuple[Any, ...]:
    """By time and sequence, then by the other columns by name: id, n, noise, x; NULL last."""
    return tuple(
        (one is None, one) if one is not None else (True, 0)
        for one in (row[3], row[1], row[0], row[4])
    )


def _at(draw: Random) -> datetime | None:
    minutes = draw.choice((0, 29, 30, 31, 60, 61, draw.randrange(400), draw.randrange(400)))
    return (
        None
        if draw.random() < 0.03
        else START + timedelta(minutes=minutes, microseconds=draw.choice((0, 0, 1)))
    )


class Histories:
    """Keys side by side in one source, each with a history of its own: rows that come, change, move
    and go.
    """

    def __init__(self, number: int, seed: int) -> None:
        self.rows: dict[int, Row] = {}
        self._draw, self._keys, self._next = Random(seed), number, 0

    def step(self, most: int) -> tuple[list[Row], list[int]]:
        """Change some keys, and return rows to merge and ids to delete."""
        draw, merged, gone = self._draw, dict[int, Row](), list[int]()
        mine: dict[Any, list[int]] = {}
        for id_, row in self.rows.items():
            mine.setdefault(row[2], []).append(id_)
        for number in range(self._keys):
            key = f"k{number}" if number else None
            for _ in range(draw.randint(0, most)):
                known, what = mine.get(key, []), draw.random()
                if what < 0.6 or not known:
                    self._next += 1
                    merged[self._next] = self._row(self._next, key)
                elif what < 0.85:
                    id_ = draw.choice(known)
                    moved = f"k{draw.randrange(1, self._keys)}" if draw.random() < 0.2 else key
                    merged[id_] = self._row(id_, moved) if draw.random() < 0.8 else self.rows[id_]
                else:
                    gone.append(draw.choice(known))
        merged = {id_: row for id_, row in merged.items() if id_ not in gone}
        self.rows = {id_: row for id_, row in (self.rows | merged).items() if id_ not in gone}
        return list(merged.values()), gone

    def _row(self, id_: int, key: str | None) -> Row:
        draw = self._draw
        return (id_, draw.randint(1, 2), key, _at(draw), draw.choice((None, 1, 2, 5)), 0.5, "")


def _apply(it: Derivation, change: tuple[list[Row], list[int]]) -> None:
    merged, gone = change
    if merged:
        it.upsert(*merged)
    if gone:
        it.sql(f"delete from {{t}} where id in ({', '.join(map(str, gone))})")


def _table(it: Derivation, path: str, columns: str) -> Counter[tuple[Any, ...]]:
    found = Table(path).rows(f"select {columns} from t")
    return Counter(tuple(str(one) for one in row.values()) for row in found)


def _held(it: Derivation, rows: list[Row]) -> None:
    columns = 'k, session_start, position, n, "sum"'
    expected = Counter(tuple(map(str, row)) for row in model(rows))
    assert _table(it, it.layout.tables.target.path, columns) == expected


def _states(it: Derivation) -> Counter[tuple[Any, ...]]:
    return _table(
        it,
        it.layout.tables.snapshots.path,
        "k, session_start, _at, _number, _position, _stays, _state",
    )


@pytest.mark.full
def test_thousands_of_histories_equal_a_plain_fold(tmp_path: Path, spark: SparkSession) -> None:
    tuning = Tuning(kept_every=3)  # so that segments of a few rows have states within
    it, world = (
        folding(tmp_path, spark, replace(tuning, keys_descending=True)),
        Histories(HISTORIES, 7),
    )
    _apply(it, world.step(6))
    it.derive(buckets=2)
    _held(it, list(world.rows.values()))
    for _ in range(2):
        _apply(it, world.step(2))
        rows = it.derive()
        _held(it, list(world.rows.values()))
    assert rows[0].inserted and rows[0].updated and rows[0].deleted and rows[0].unchanged
    assert rows[0].unchanged < rows[0].recomputed / 2, "rows before the change are not made again"
    states = _states(it)
    assert any(one[5] == "True" for one in states), "states within segments"
    anew = folding(tmp_path / "anew", spark, tuning)
    anew.insert(*world.rows.values())
    anew.derive()
    assert states == _states(anew), "states are a function of the source"
    assert prove(it.layout, it.flow, [Table(it.path)], it.layout.tables.target).holds


def _is_behind(it: Derivation) -> bool:
    return lack_newest(TableWriter(it.layout, it.flow, 1, it.batch))


@pytest.mark.long
def test_what_a_batch_that_died_left_is_replaced_or_kept(
    tmp_path: Path, spark: SparkSession
) -> None:
    it, world = folding(tmp_path, spark, Tuning(kept_every=3)), Histories(60, 3)
    _apply(it, world.step(9))

    def dying(name: str) -> None:
        if name == "remembered":
            raise Injected(name)

    for _ in range(2):
        with pytest.raises(Injected):
            it.derive(reached=dying)
        left = _states(it)
        version = it.layout.tables.snapshots.version
        it.derive()
        assert it.layout.tables.snapshots.version == version, "equal states are not written again"
        assert left == _states(it)
        _held(it, list(world.rows.values()))
        _apply(it, world.step(3))
    it.derive()
    before = it.layout.tables.snapshots.files()
    it.upsert(*[row for row in world.rows.values() if row[3] is not None][:1])  # the same row again
    (row,) = it.derive()
    assert (row.applied, it.layout.tables.snapshots.files()) == (0, before)
    assert not _is_behind(it)
    # lost: keys are folded whole, and have states again
    spark.sql(f"delete from delta.`{it.layout.tables.snapshots.path}`")
    _apply(it, world.step(3))
    it.derive()
    _held(it, list(world.rows.values()))
    assert 0 < _states(it).total() < left.total() * 2


@pytest.mark.long
def test_states_that_lack_a_batch_are_all_made_again(tmp_path: Path, spark: SparkSession) -> None:
    """As after a power cut, or where the table was put back from a copy."""
    it = folding(tmp_path, spark)
    rows = [
        (at * 10 + key, 1, "ab"[key], START + timedelta(minutes=at * 9), 1, 0.5, "")
        for at in range(9)
        for key in (0, 1)
    ]

    def come(*new: Row) -> None:
        rows.extend(new)
        it.insert(*new)
        it.derive()
        _held(it, rows)

    it.insert(*rows)
    it.derive()
    come(*((200 + key, 1, "ab"[key], START + timedelta(minutes=13), 2, 0.5, "") for key in (0, 1)))
    for one in (Path(it.layout.tables.snapshots.path) / "_delta_log").glob(
        f"*{it.layout.tables.snapshots.version:020}.*"
    ):
        one.unlink()
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    assert _is_behind(it)
    come((250, 1, "a", None, 1, 0.5, ""))  # in no fold
    assert _is_behind(it)
    come((300, 1, "a", START + timedelta(minutes=80), 1, 0.5, ""))
    assert not _is_behind(it)
    come((301, 1, "b", START + timedelta(minutes=80), 1, 0.5, ""))


@pytest.mark.full
def test_a_change_reads_what_follows_the_newest_state_before_it(
    tmp_path: Path, spark: SparkSession
) -> None:
    it = folding(tmp_path, spark, Tuning(kept_every=10))
    rows = [(at, 1, "a", START + timedelta(minutes=at), 1, 0.5, "") for at in range(100)]
    it.insert(*rows)
    # states of an earlier form of the class, which a reset leaves: they give way
    spark.createDataFrame([("a", 1)], "k string, _generation int").write.format("delta").save(
        it.layout.tables.snapshots.path
    )
    it.derive()
    assert _states(it).total() == 10
    it.insert((200, 1, "a", START + timedelta(minutes=95), 2, 0.5, ""))
    (row,) = it.derive()
    assert row.recomputed < 12 and row.deleted == 0, (
        "rows of the 90 before are neither read nor compared"
    )
    _held(it, [*rows, (200, 1, "a", START + timedelta(minutes=95), 2, 0.5, "")])


@pytest.mark.full
def test_a_fold_that_fails_names_key_and_line(tmp_path: Path, spark: SparkSession) -> None:
    it = folding(tmp_path, spark)
    it.insert((1, 1, "a", START, 1, 0.5, ""), (2, 1, "b", START, 666, 0.5, ""))
    with pytest.raises(TerminalError) as error:
        it.derive()
    assert error.value.code == "group-not-computed"
    assert "key ('b'): process: ValueError: no such number (shop.py:6)" in error.value.found, (
        error.value.found
    )
    assert not it.layout.tables.snapshots.exists


def test_the_source_rows_behind_a_row_are_those_of_its_segment(
    tmp_path: Path, spark: SparkSession
) -> None:
    it = folding(tmp_path, spark)
    it.insert(
        *(
            (at, 1, "a", START + timedelta(minutes=at * 20 + 60 * (at > 2)), 1, 0.5, "")
            for at in range(5)
        )
    )
    it.derive()
    table = it.layout.tables.target.query("select * from t where n < 0 order by session_start")
    (found,) = source_rows(it.layout, it.flow, [Table(it.path)], table, 0, 10)
    assert [sorted(row["id"] for row in found[0] if row["_row"] == at) for at in (0, 1)] == [
        [0, 1, 2],
        [3, 4],
    ]
    assert found[1] == {0: 3, 1: 2}


FLIGHTS: dict[str, Any] = PART | {
    "group_by": ["carrier"],
    "order_by": ["at", "seq"],
    "gap": "10 minutes",
}
CODE = BASKET.replace('["n"] == 666', '["delay"] == 666').replace('row["n"]]', 'row["delay"]]')


def _run(it: Chain) -> Iterator[tuple[Any, ...]]:
    for row in it.layout("baskets").tables.target.rows(
        "select * from t order by session_start, position"
    ):
        yield tuple(row.values())[:-1]


@pytest.mark.long
def test_a_changed_class_is_another_derivation(tmp_path: Path, spark: SparkSession) -> None:
    home = tmp_path / "project"
    write(home, CODE)
    it = Chain(home, spark, baskets={"source": {"table": "flights"}, "processor": FLIGHTS})
    it.deliver(it.row(1, 0), it.row(2, 5), it.row(3, 30))
    it.run("flights")
    it.run()
    first = list(_run(it))
    assert [row[2:] for row in first] == [(1, 2, 2), (2, -2, 1), (1, -1, 1)] and it.proven(
        "baskets"
    )
    kind = prove(it.layout("baskets"), it.spec.declared("baskets"), it.sources("baskets"), _of(it))
    assert kind.engine.startswith("python ") and "folds row by row" in kind.engine and kind.holds
    spark.sql(f"update delta.`{it.layout('baskets').tables.target.path}` set n = 9 where n = 2")
    assert not it.proven("baskets")
    write(home, CODE.replace("% 2 == 0", "% 2 == 1"))
    it.spec = PipelineSpec.model_validate(it.document)
    it.deliver(it.row(4, 35))
    it.run("flights")
    with pytest.raises(TerminalError) as error:
        it.drain("baskets")
    assert (
        error.value.code == "derivation-changed" and "the code that it names" in error.value.found
    )
    assert "draindown reset" in str(error.value.next)
    (home / "jobs" / "processors" / "shop.py").unlink()
    it.spec = PipelineSpec.model_validate(it.document)
    with pytest.raises(TerminalError) as error:
        it.drain("baskets")
    assert error.value.code == "processor-missing" and "shop.py" in error.value.found
    write(home, CODE.replace("% 2 == 0", "% 2 == 1"))
    it.spec = PipelineSpec.model_validate(it.document)
    with open_flow(it.spec, "baskets", Needs.FINISHED, owner="me", run_id="reset"):
        reset.begin(
            it.request("baskets"), reset.plan(it.request("baskets")), by="me", accept_missing=False
        )
    it.run("baskets")
    assert [row[2:] for row in _run(it)] == [
        (1, 1, 1),
        (2, -2, 1),
        (1, 1, 1),
        (2, -2, 1),
    ] and it.proven("baskets")
    states = it.layout("baskets").tables.snapshots.rows("select distinct _generation as g from t")
    assert [row["g"] for row in states] == [2], "states were made anew"


def _of(it: Chain) -> Table:
    return it.layout("baskets").tables.target
