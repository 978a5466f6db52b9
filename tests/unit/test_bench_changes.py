"""The benchmarks' change events are what their description says, and the same each time."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import duckdb
import pytest

from benchmarks import changes

ROWS = 40_000


@pytest.fixture(scope="module")
def lines() -> list[str]:
    return list(changes.Feed(seed=1).lines(ROWS))


def _read(lines: list[str]) -> list[dict[str, object]]:
    read = []
    for line in lines:
        try:
            read.append(json.loads(line))
        except ValueError:
            continue
    return [row for row in read if "order_id" in row and isinstance(row["seq"], int)]


def test_the_mixture_is_as_described(lines: list[str]) -> None:
    good = _read(lines)
    again = sum(a == b for a, b in zip(lines[1:], lines, strict=False))
    newest: dict[object, int] = {}
    kinds: Counter[str] = Counter()
    for row in good:
        key, seq = row["order_id"], int(str(row["seq"]))
        before = newest.get(key)
        kinds[
            "insert" if before is None else "late" if seq < before else "delete" if row["op"] == "delete" else "update"
        ] += 1
        newest[key] = max(before or 0, seq)
    shares = {kind: count / ROWS for kind, count in kinds.items()}
    assert shares["delete"] == pytest.approx(0.05, abs=0.005)
    assert shares["late"] == pytest.approx(0.03, abs=0.005)
    # a line that comes twice is counted once more with the kind of the one before
    assert shares["update"] == pytest.approx(0.6 + 0.02 * 0.6, abs=0.02)
    assert again / ROWS == pytest.approx(0.02, abs=0.005)
    assert 0 < (ROWS - len(good)) / ROWS < 0.002


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = (changes.feed(tmp_path / name, [50, 20]) for name in ("a", "b"))
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]
    assert [p.stat().st_mtime for p in first] == [1, 2]


@pytest.mark.parametrize("seeded", [changes.Seeded(9_000), changes.Seeded(9_000, 300)])
def test_a_batch_changes_seeded_orders_on_their_own_day(seeded: changes.Seeded) -> None:
    days = dict(
        duckdb.sql(f"select order_id, event_date::varchar from (select {changes.seed_columns(seeded, '//')} "
                   f"from range({seeded.rows}) ids(id))").fetchall()
    )  # fmt: skip
    rows = [json.loads(line) for line in changes.batch(seeded, 5_000, 3, 0.9)]
    known = [row for row in rows if row["order_id"] < seeded.rows]
    assert set(Counter(days.values()).values()) == {seeded.daily}
    assert len(set(days.values())) == seeded.days
    assert {row["event_date"] for row in known} <= set(days.values())
    assert all(days[row["order_id"]] == row["event_date"] for row in known)
    newest = sorted(set(days.values()))[-changes.RECENT_DAYS :]
    assert sum(row["event_date"] in newest for row in rows) / len(rows) == pytest.approx(0.9, abs=0.02)
    assert len({row["seq"] for row in rows}) == len(rows)
    assert min(row["seq"] for row in rows) > max(json.loads(line)["seq"] for line in changes.batch(seeded, 5_000, 2, 0))


def test_new_orders_of_two_batches_are_different_ones() -> None:
    new = [
        {json.loads(line)["order_id"] for line in changes.batch(changes.Seeded(900), 0, number, 1.0, new=50)}
        for number in (0, 1)
    ]
    assert not new[0] & new[1]
    assert min(new[0]) >= 900


def test_a_bad_row_is_bad_for_the_suite_only() -> None:
    bad = [json.loads(line) for line in changes.batch(changes.Seeded(900), 0, 1, 1.0, bad=1)]
    assert [row["amount"] for row in bad] == [-1]
