"""The lateness of rows is that of the raw files."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from draindown.base.errors import TerminalError
from draindown.cli.program import main
from draindown.config.models import PipelineSpec
from draindown.flow.state import FlowState
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import BatchRow
from draindown.planning.explanation import expected_seconds
from draindown.planning.lateness import Asked, lateness
from draindown.planning.reach import Reach

START = datetime(2026, 3, 1, tzinfo=UTC)
_UTC = pa.timestamp("us", "UTC")
_SCHEMA = pa.schema(
    [("id", pa.int64()), ("at", _UTC), ("_arrived_at", _UTC), ("_changed_at", _UTC)]
)
Row = dict[str, Any]
WINDOW = {
    "window": {"time": "at", "size": "1 hour", "measures": {"c": "count(*)"}},
    "allowed_lateness": "2 hours",
}


class Landed:
    """Files of events, and the table that a drain makes of them: a row arrived when its file was
    written.
    """

    def __init__(self, home: Path, seed: int) -> None:
        landing = {
            "source": {"files": "in/*.json", "format": "json"},
            "columns": {"id": "bigint", "at": "timestamp"},
        }
        derived = {"source": {"table": "f"}} | WINDOW
        over = {
            "source": {"table": "d"},
            "window": {"time": "window_start", "size": "1 day", "measures": {"n": "sum(c)"}},
        }
        other = landing | {"columns": {"id": "bigint", "seen": "timestamp"}}
        pairs = {
            "table": "g",
            "on": ["id"],
            "interval": {"left": "at", "right": "seen", "between": ["0", "1 hour"]},
        }
        both = {
            "source": {"table": "f"},
            "join": pairs | {"columns": {"seen": "seen"}},
            "allowed_lateness": "1 day",
        }
        flows = {"f": landing, "g": other, "d": derived, "e": over, "j": both}
        document = {"pipeline": "p", "lake": str(home / "lake"), "flows": flows}
        self.spec, self.home = PipelineSpec.model_validate(document), home
        path = home / "dags" / "pipelines" / "p.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(document))
        (home / "in").mkdir()
        self.rows = [
            row for number in range(12) for row in self._file(number, Random(seed * 100 + number))
        ]
        write_deltalake(
            self.spec.layout("f").tables.target.path,
            pa.Table.from_pylist(self.rows, schema=_SCHEMA),
        )

    def _file(self, number: int, draw: Random) -> list[Row]:
        arrived = START + timedelta(hours=4 * number)
        rows = []
        for _ in range(40):
            late = timedelta(
                seconds=draw.choice(
                    (0, -90, draw.randrange(60), draw.randrange(7200), draw.randrange(300_000))
                )
            )
            at = None if draw.random() < 0.05 else arrived - late
            rows.append(
                {
                    "id": draw.randrange(10**9),
                    "at": at,
                    "_arrived_at": arrived,
                    "_changed_at": arrived,
                }
            )
        path = self.home / "in" / f"{number:02}.json"
        path.write_text(
            "".join(
                json.dumps({"id": row["id"], "at": row["at"] and row["at"].isoformat()}) + "\n"
                for row in rows
            )
        )
        os.utime(path, (arrived.timestamp(), arrived.timestamp()))
        return rows

    @property
    def asked(self) -> Asked:
        return Asked(self.spec.layout("f"), "at")


@pytest.mark.parametrize("seed", range(3))
def test_lateness_is_that_of_the_raw_files(tmp_path: Path, seed: int) -> None:
    it = Landed(tmp_path, seed)
    found = lateness(it.asked, [4321])
    files = [(str(path), path.stat().st_mtime) for path in (tmp_path / "in").iterdir()]
    with duckdb.connect() as db:
        db.execute("set timezone = 'UTC'")
        db.execute("create table files (filename varchar, arrived double)")
        db.executemany("insert into files values (?, ?)", files)
        db.execute(
            f"""create table raw as select "at"::timestamptz as t, arrived - epoch("at"::timestamptz) as late
            from read_json('{tmp_path}/in/*.json', columns = {{id: 'bigint', "at": 'varchar'}}, filename = true)
            join files using (filename)"""
        )
        (timed, untimed) = (
            db.execute("select count(t), count(*) - count(t) from raw").fetchone() or ()
        )
        assert (found.rows, found.untimed) == (timed, untimed) and untimed
        for one in [*found.covers, *found.quantiles]:
            (rows,) = (
                db.execute(f"select count(*) from raw where late <= {one.delay}").fetchone() or ()
            )
            assert (one.rows, one.share) == (rows, rows / timed)
        for share, one in zip((0.5, 0.9, 0.95, 0.99, 0.999, 1.0), found.quantiles, strict=True):
            (delay,) = (
                db.execute(
                    "select min(l) from (select late as l, cume_dist() over (order by late) as c from raw "
                    f"where late is not null) where c >= {share}"
                ).fetchone()
                or ()
            )
            assert one.delay == pytest.approx(delay)
        days = db.execute(
            "select t::date, count(*), max(late) from raw where t is not null group by all order by all"
        ).fetchall()
    assert [(one.day, one.rows, one.most) for one in found.days] == [
        (d, n, pytest.approx(m)) for d, n, m in days
    ]
    assert 4321 in [one.delay for one in found.covers] and found.covers[-1].share == 1


@pytest.mark.parametrize("fill", [False, True])
def test_the_next_run_takes_what_batches_of_the_ledger_took(tmp_path: Path, fill: bool) -> None:
    it = Landed(tmp_path, 1)
    layout = it.spec.layout("d")
    rows = [
        BatchRow(
            *("p", "d", 1, at),
            run_id="r",
            form="derive",
            records=records,
            used=records,
            seconds=3 + records / 1000,
        )
        for at, records in enumerate((100, 1000, 4000, 8000, 200, 5000))
    ]
    ledger_table.record(layout, rows)
    ends = {"files": 1, "of_files": 1, "rows": 1, "bytes": 1, "partitions": 0, "of_partitions": 0}
    source = Reach(
        "f", None if fill else 3, 4, 2000, of_rows=6000, partitioned_by=(), sought_by=(), **ends
    )
    found = expected_seconds(FlowState.of(layout), [source])
    assert found == pytest.approx(12 + 3 + (6 if fill else 2), abs=0.2), (
        "a start without history is 12 s"
    )
    assert expected_seconds(FlowState.of(layout), []) is None


def test_the_command_tells_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    it = Landed(tmp_path, 1)
    words = ["--root", str(tmp_path), "late", "list", "p/d", "--summary"]
    assert main([*words, "--json"]) == 0
    (said,) = json.loads(capsys.readouterr().out)
    assert said["allowed_lateness"] == 7200 and said["rows"] == lateness(it.asked).rows
    assert 7200 in [one["delay"] for one in said["covers"]]
    assert main(words) == 0
    assert "p/d of f" in (out := capsys.readouterr().out) and "2026-03-01" in out


def test_each_side_of_a_join_has_its_own_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    it = Landed(tmp_path, 1)
    seen = [row for row in it.rows if row["at"]][:7]
    rows = [{"id": row["id"], "seen": row["at"], "_arrived_at": row["_arrived_at"]} for row in seen]
    write_deltalake(it.spec.layout("g").tables.target.path, pa.Table.from_pylist(rows))
    assert main(["--root", str(tmp_path), "late", "list", "p/j", "--summary", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    timed = sum(row["at"] is not None for row in it.rows)
    assert [(one["table"], one["time"], one["rows"], one["allowed_lateness"]) for one in said] == [
        ("f", "at", timed, 86400),
        ("g", "seen", 7, 86400),
    ]


@pytest.mark.parametrize(
    ("target", "code", "said"), [("p/f", 2, "flow f is not derived"), ("p/e", 78, "no-arrival")]
)
def test_what_cant_be_told_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str, code: int, said: str
) -> None:
    it = Landed(tmp_path, 1)
    write_deltalake(
        it.spec.layout("d").tables.target.path, pa.table({"window_start": pa.array([START], _UTC)})
    )
    assert main(["--root", str(tmp_path), "late", "list", target, "--summary"]) == code
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_table_that_cant_be_summarized_hides_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Landed(tmp_path, 1)
    assert main(["--root", str(tmp_path), "late", "list", "p", "--summary"]) == 78
    out = capsys.readouterr().out
    assert "p/d of f" in out and "p/e  not summarized\n  no-arrival: " in out


def test_no_rows_are_no_error(tmp_path: Path) -> None:
    it = Landed(tmp_path, 1)
    write_deltalake(
        it.spec.layout("f").tables.target.path,
        pa.Table.from_pylist([], schema=_SCHEMA),
        mode="overwrite",
    )
    found = lateness(it.asked)
    assert (found.rows, found.days, found.quantiles) == (0, [], [])
    with pytest.raises(TerminalError) as caught:
        lateness(Asked(it.spec.layout("d"), "at"))
    assert caught.value.code == "no-arrival"
