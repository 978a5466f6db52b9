"""`draindown why` of a key that a derived table lacks: what became of the source rows that had
it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from draindown.config.derived import DerivedFlow
from draindown.gate import published
from draindown.provenance.why import Question, why
from draindown.sources.tables.source import Tables
from draindown.sources.tables.upstream import FEED
from tests.landed_lake import LandedLake
from tests.tables.test_table_source import BOUND, NOW

_UTC = pa.timestamp("us", "UTC")
_HOUR = "2026-03-01T10:00:00+00:00"
WINDOW = {"time": "at", "size": "1 hour", "group_by": ["g"], "measures": {"c": "count(*)"}}
PER = {"keys": ["g"], "sql": "select g, count(*) c from f group by g"}


def _line(id: str, n: int, g: str = "a", at: str = _HOUR, op: str = "u") -> str:
    return json.dumps({"id": id, "n": n, "op": op, "g": g, "at": at, "v": 1})


class Chain(LandedLake):
    """A landed table `f`, and flow `d` over it, whose table is empty: every key is asked for in
    vain.
    """

    def __init__(self, home: Path, **part: Any) -> None:
        super().__init__(home, d={"source": {"table": "f"}, **part})

    def derive(self, *columns: tuple[str, pa.DataType], rows: pa.Table | None = None) -> None:
        """Have the first batch of the derived flow read all that was published, and publish
        first.
        """
        upstream, layout = self.layout, self.spec.layout("d")
        DeltaTable(upstream.tables.target.path).alter.set_table_properties({FEED: "true"})
        log = upstream.tables.target
        pointer = published.Published(
            version=log.version,
            table_id=log.id,
            changed_at=None,
            at=NOW,
            run_id="r",
            rows=0,
            committed_ms=None,
        )
        published.publish(upstream, pointer)
        declared = self.spec.declared("d")
        assert isinstance(declared, DerivedFlow)
        assert Tables(declared.source, layout, self.home, "r").pin(1, NOW).take(BOUND) is False
        done = CommitProperties(app_transactions=[Transaction(layout.app_id(1, "rows"), 0)])
        empty = pa.schema([*columns, ("_changed_at", _UTC)]).empty_table()
        write_deltalake(
            layout.tables.target.path,
            empty if rows is None else rows,
            mode="append",
            commit_properties=done,
        )

    def why(self, **key: str | None) -> dict[str, Any]:
        asked = Question(
            self.spec, "d", self.home, key, 20, False, lambda _: self.spec, lambda _: None
        )
        (found,) = why(asked)
        return json.loads(json.dumps(found.as_dict()))  # type: ignore[no-any-return]


def _windows(home: Path) -> Chain:
    return Chain(home, window=WINDOW)


_OF_WINDOW = (("window_start", _UTC), ("window_end", _UTC), ("g", pa.string()), ("c", pa.int64()))


def test_a_window_whose_rows_were_deleted_moved_or_withdrawn_says_so(tmp_path: Path) -> None:
    it = _windows(tmp_path)
    it.drain([_line("x", 1), _line("y", 1, "b"), _line("z", 1, "c"), _line("w", 1, "d")])
    it.drain([_line("x", 2, op="d"), _line("y", 2, "b", "2026-03-01T12:30:00+00:00")])
    it.withdraw("z")
    it.derive(*_OF_WINDOW)

    deleted = it.why(window_start=_HOUR, g="a")
    assert (deleted["state"], deleted["number"]) == ("deleted", {"f": 0})
    (source,) = deleted["sources"]
    assert (source["key"], source["state"], source["batch"]["number"]) == (
        {"id": "x"},
        "deleted",
        1,
    )
    (record,) = [one for one in source["records"] if one["fate"] == "deleted"]
    assert record["input"].endswith("002.json") and record["position"] == 1
    assert deleted["next"] == ["draindown why p/f --key id=x"]

    moved = it.why(window_start=_HOUR, g="b")
    (source,) = moved["sources"]
    assert (moved["state"], source["key"], source["row"]["n"]) == ("moved", {"id": "y"}, 2)
    assert not source["counts"] and f"at was {_HOUR}, is 2026-03-01T12:30:00+00:00" in source["why"]
    assert (
        moved["next"] == ["draindown why p/f --key id=y"]
        and "1 source row had its key" in moved["said"]
    )

    withdrawn = it.why(window_start=_HOUR, g="c")
    assert (withdrawn["state"], withdrawn["sources"][0]["state"]) == ("withdrawn", "withdrawn")

    missing = it.why(window_start=_HOUR, g="d")
    assert missing["state"] == "unknown" and missing["next"] == ["draindown audit p/d"]
    for nowhere in (
        {"window_start": _HOUR, "g": "z"},
        {"window_start": "2026-03-01T09:00:00+00:00", "g": "a"},
    ):
        assert (it.why(**nowhere)["state"], it.why(**nowhere)["gone"]) == ("never-seen", [])


def test_a_window_that_ends_after_the_last_year_has_its_rows(tmp_path: Path) -> None:
    it = _windows(tmp_path)
    it.drain([_line("x", 1, at="9999-12-31T23:59:59.999999+00:00")])
    end = 253_402_300_800_000_000  # 10000-01-01 in microseconds
    times = [pa.array([at], pa.int64()).cast(_UTC) for at in (end - 3_600_000_000, end, 0)]
    names = ["window_start", "window_end", "_changed_at", "g", "c"]
    it.derive(rows=pa.table([*times, pa.array(["a"]), pa.array([1])], names=names))
    found = it.why(window_start="9999-12-31T23:00:00+00:00", g="a")
    assert [one["key"] for one in found["sources"]] == [{"id": "x"}]
    assert "10000-01-01" in found["row"]["window_end"]


def test_a_row_that_came_and_went_before_the_derived_flow_read_it_was_there(tmp_path: Path) -> None:
    it = _windows(tmp_path)
    it.drain([_line("x", 1)])
    it.drain([_line("y", 1, "b")])
    it.drain([_line("y", 2, op="d")])
    it.derive(*_OF_WINDOW)
    found = it.why(window_start=_HOUR, g="b")
    assert (found["state"], found["sources"][0]["batch"]["number"]) == ("deleted", 2)


def test_a_row_that_no_batch_of_the_derived_flow_read_waits(tmp_path: Path) -> None:
    it = _windows(tmp_path)
    it.drain([_line("x", 1)])
    it.derive(*_OF_WINDOW)
    it.drain([_line("y", 1, "b")])
    found = it.why(window_start=_HOUR, g="b")
    assert (found["state"], found["next"]) == ("waiting", ["draindown run p/d"])


def test_what_a_verdict_would_need_and_vacuum_took_is_named(tmp_path: Path) -> None:
    it = _windows(tmp_path)
    it.drain([_line("x", 1)])
    it.drain([_line("x", 2, op="d"), _line("y", 1, "b")])
    it.derive(*_OF_WINDOW)
    assert it.why(window_start=_HOUR, g="a")["state"] == "deleted"
    now = set(it.layout.tables.target.table.file_uris())
    for file in Path(it.layout.tables.target.path).glob("*.parquet"):
        if not any(uri.endswith(file.name) for uri in now):
            file.unlink()
    found = it.why(window_start=_HOUR, g="a")
    assert found["state"] == "unknown" and "removed by VACUUM" in found["gone"][0]
    assert it.why(window_start=_HOUR, g="b")["sources"], "rows that are there need nothing else"


@pytest.mark.parametrize(
    ("part", "columns", "key"),
    [
        pytest.param(
            {"query": PER},
            (("g", pa.string()), ("c", pa.int64())),
            {"g": "a"},
            marks=pytest.mark.full,
        ),
        pytest.param(
            {"deduplicate": {"keys": ["g"], "sequence_by": ["n"]}},
            (("g", pa.string()),),
            {"g": "a"},
            marks=pytest.mark.full,
        ),
        (
            {
                "session": {
                    "time": "at",
                    "gap": "5 minutes",
                    "group_by": ["g"],
                    "measures": {"c": "count(*)"},
                }
            },
            (("g", pa.string()), ("session_start", _UTC), ("session_end", _UTC), ("c", pa.int64())),
            {"g": "a", "session_start": _HOUR},
        ),
        (
            {"top": {"group_by": ["g"], "order_by": ["n"], "rows": 2}},
            (("g", pa.string()), ("position", pa.int32())),
            {"g": "a", "position": "1"},
        ),
        (
            {"deduplicate": {"keys": ["id"], "sequence_by": ["n"]}},
            (("id", pa.string()),),
            {"id": "x"},
        ),
    ],
    ids=["query", "deduplicate", "session", "top", "same key"],
)
def test_each_kind_leads_to_the_record_that_deleted_the_source_row(
    tmp_path: Path, part: dict[str, Any], columns: Any, key: dict[str, str]
) -> None:
    it = Chain(tmp_path, **part)
    it.drain([_line("x", 1), _line("y", 1, "b", "2026-03-01T11:00:00+00:00")])
    it.drain([_line("x", 2, op="d")])
    it.derive(*columns)
    found = it.why(**key)
    assert (found["state"], found["sources"][0]["state"]) == ("deleted", "deleted")
    assert found["sources"][0]["batch"]["number"] == 1
    other = dict.fromkeys(key, "nobody") | {
        name: text for name, text in key.items() if name not in ("g", "id")
    }
    assert it.why(**other)["state"] == "never-seen"


def test_a_key_that_a_source_refused_is_refused(tmp_path: Path) -> None:
    it = Chain(tmp_path, deduplicate={"keys": ["id"], "sequence_by": ["n"]})
    it.drain([_line("x", 1), json.dumps({"id": "bad", "n": "many"})])
    it.derive(("id", pa.string()))
    found = it.why(id="bad")
    assert (found["state"], found["sources"][0]["state"]) == ("quarantined", "quarantined")
