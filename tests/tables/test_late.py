"""Late rows on disk, and decisions about them: which are in the source, what was decided, what
counts from when.
"""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from draindown.base.errors import TerminalError
from draindown.cli.program import main
from draindown.config.derived import DerivedFlow
from draindown.config.models import PipelineSpec
from draindown.doctor.examination import examine
from draindown.flow import generations
from draindown.lake.home import FlowHome
from draindown.lake.table import Table
from draindown.proof.compare import prove
from draindown.proof.pinned import pinned as proof
from draindown.runs.request import Request
from draindown.sources import intake
from draindown.sources.tables import late, registered
from draindown.sources.tables.late import Place
from draindown.sources.tables.source import OWN
from tests.tables.test_table_source import Project

NOW = datetime(2026, 3, 1, tzinfo=UTC)
LAYOUT = {"pipeline": "p", "flow": "d", "table_name": "d", "own_intakes": True}


def seen(number: int, piece: int, change: str = "came", generation: int = 1) -> dict[str, Any]:
    """A row of the table of late rows, as the batch of slice `piece` wrote it."""
    return {
        "late_id": f"{number:04x}",
        "source_table": "t",
        "origin": {"input": "file", "position": number},
        "event_time": NOW,
        "arrived_at": NOW,
        "lateness": 100 + number,
        "window_start": NOW,
        "groups": "{}",
        "record": f'{{"id":{number}}}',
        "change": change,
        "slice": piece,
        "generation": generation,
    }


def told(*numbers: int, at: datetime = NOW, unit: str = "file", of: str = "t") -> pa.Table:
    """Rows of table `of` to decide about, as `late.chosen` returns them."""
    rows = [
        {
            "late_id": f"{one:04x}" if unit == "file" else f"x{one}",
            "input": unit,
            "position": one,
            "arrived_at": at,
        }
        | {"source_table": of}
        for one in numbers
    ]
    return pa.Table.from_pylist(rows, schema=late._CHOSEN)


def applied(layout: FlowHome, until: int) -> list[int]:
    return sorted(late.applied(layout, until)["position"].to_pylist())


def pinned(
    layout: FlowHome, number: int, *, fill: bool, bucket: tuple[int, int] = (0, 1), of: int = 1
) -> None:
    """Pin slice `number` of generation `of`. `bucket`: its number, and of how many."""
    own = {"table_id": "t", "derivation": "d", "fill": fill, "changes": False, "rows": 1}
    own |= {"bucket": bucket[0], "buckets": bucket[1]}
    unit = {
        "input": "t",
        "start": -1,
        "until": 1,
        "bytes": 1,
        "unpacked": 1,
        "records": None,
        "arrived_at": NOW,
    }
    intake.append(layout, of, OWN, [unit | own | {"decided_from": 0, "decided": 0}], NOW, number)


@pytest.fixture
def layout(tmp_path: Path) -> FlowHome:
    found = FlowHome(str(tmp_path / "lake"), **LAYOUT)  # type: ignore[arg-type]
    for number, fill in enumerate((True, False, True, False), 1):
        pinned(found, number, fill=fill)
    return found


def ids(place: Place, state: Any = "open") -> list[int]:
    return [row["origin"]["position"] for row in late.listed(place, state)]


def test_rows_that_are_in_the_source_since_the_newest_fill_are_listed(layout: FlowHome) -> None:
    assert ids(Place(layout, 1, 5)) == [] and late.counts(Place(layout, 1, 5))["open"] == 0
    rows = [
        seen(1, 1),
        seen(2, 1),
        seen(2, 3),
        seen(3, 3),
        seen(3, 4, "went"),
        seen(4, 4),
        seen(5, 3, generation=2),
    ]
    write_deltalake(layout.tables.late.path, pa.Table.from_pylist(rows))
    assert ids(Place(layout, 1, 5)) == [4, 2], (
        "1 is gone since the fill of slice 3, 3 since slice 4; 5 is of another life"
    )
    assert ids(Place(layout, 1, 4)) == [3, 2], "slice 4 is yet to be read"
    assert ids(Place(layout, 1, 3)) == [2, 1], "the second fill, too"


def test_the_newest_decision_counts_and_the_first_to_apply_counts_from_then(
    layout: FlowHome,
) -> None:
    write_deltalake(
        layout.tables.late.path, pa.Table.from_pylist([seen(number, 3) for number in range(4)])
    )
    place = Place(layout, 1, 5)
    assert late.newest(layout) == 0 and applied(layout, 9) == []
    assert late.decide(place, told(0, 1), "discarded", by="me", note="", at=NOW) == 1
    assert late.newest(layout) == 0, "nothing counts since"
    assert late.decide(place, told(1, 2), "released", by="me", note="", at=NOW) == 2
    assert late.decide(place, told(2, 3), "released", by="me", note="", at=NOW) == 3
    assert late.counts(place) == {"open": 0, "released": 3, "discarded": 1, "gone": 0} and ids(
        place, "discarded"
    ) == [0]
    assert late.newest(layout) == 3
    assert applied(layout, 2) == [1, 2] and applied(layout, 3) == [1, 2, 3]


def test_applied_rows_stay_listed_and_those_that_the_source_has_no_more_are_gone(
    layout: FlowHome,
) -> None:
    write_deltalake(
        layout.tables.late.path, pa.Table.from_pylist([seen(number, 2) for number in range(5)])
    )
    before = Place(layout, 1, 3)
    late.decide(before, told(0, 1, 4), "released", by="me", note="", at=NOW)
    late.decide(before, told(2), "discarded", by="me", note="", at=NOW)
    assert ids(before, "released") == [4, 1, 0] and ids(before, "gone") == []
    more = [seen(0, 3), seen(1, 3), seen(2, 3), seen(1, 4, "went"), seen(2, 4, "went")]
    write_deltalake(layout.tables.late.path, pa.Table.from_pylist(more), mode="append")
    assert ids(Place(layout, 1, 4), "gone") == [4], "the fill of slice 3 found the others"
    after = Place(layout, 1, 5)
    assert ids(after, "released") == [0] and ids(after, "gone") == [4, 1], "1 went with slice 4"
    assert ids(after, None) == [4, 1, 0] and late.counts(after) == {
        "open": 0,
        "released": 1,
        "discarded": 0,
        "gone": 2,
    }
    with pytest.raises(TerminalError):
        late.chosen(after, ["0001"], "released")
    assert ids(Place(layout, 2, 1), "released") == [4, 0], "after a reset: the fill has yet to look"
    write_deltalake(
        layout.tables.late.path, pa.Table.from_pylist([seen(0, 1, generation=2)]), mode="append"
    )
    pinned(layout, 1, fill=True, of=2)
    assert ids(Place(layout, 2, 2), "released") == [0] and ids(Place(layout, 2, 2), "gone") == [
        4,
        1,
    ]


def test_a_fill_counts_once_all_of_its_buckets_are_read(layout: FlowHome) -> None:
    write_deltalake(
        layout.tables.late.path, pa.Table.from_pylist([seen(number, 3) for number in range(4)])
    )
    late.decide(Place(layout, 1, 5), told(0, 1), "released", by="me", note="", at=NOW)
    for bucket in range(2):
        pinned(layout, 5 + bucket, fill=True, bucket=(bucket, 2))
    write_deltalake(
        layout.tables.late.path, pa.Table.from_pylist([seen(0, 5), seen(2, 5)]), mode="append"
    )
    half, whole = Place(layout, 1, 6), Place(layout, 1, 7)
    assert ids(half, "released") == [1, 0] and ids(half) == [3, 2], (
        "1 and 3 may be of the other bucket"
    )
    assert ids(whole, "released") == [0] and ids(whole, "gone") == [1] and ids(whole) == [2]


def test_a_decision_is_about_the_row_of_one_table(layout: FlowHome) -> None:
    """Two tables may have read the same record: each has a late row of the same place and
    arrival.
    """
    of_t, of_u = (
        seen(1, 3),
        seen(2, 3) | {"source_table": "u", "origin": {"input": "file", "position": 1}},
    )
    write_deltalake(layout.tables.late.path, pa.Table.from_pylist([of_t, of_u]))
    place = Place(layout, 1, 5)
    chosen = late.chosen(place, ["0002"], "released")
    assert chosen["source_table"].to_pylist() == ["u"] and chosen["position"].to_pylist() == [1]
    late.decide(place, chosen, "released", by="me", note="", at=NOW)
    assert late.applied(layout, 1).to_pylist() == [
        {"source_table": "u", "input": "file", "position": 1, "arrived_at": NOW}
    ]
    states = {row["source_table"]: row["state"] for row in late.listed(place, None)}
    assert states == {"t": "open", "u": "released"}


def test_an_id_names_one_row_that_can_be_decided_about_so(layout: FlowHome) -> None:
    write_deltalake(layout.tables.late.path, pa.Table.from_pylist([seen(0x10, 3), seen(0x11, 3)]))
    place = Place(layout, 1, 5)
    for start in ("001", "ff"):
        with pytest.raises(TerminalError) as error:
            late.chosen(place, [start], "released")
        assert error.value.code == "unknown-late-row"
    row = late.chosen(place, ["0011"], "released")
    assert row["position"].to_pylist() == [0x11]
    late.decide(place, row, "discarded", by="me", note="", at=NOW)
    assert late.chosen(place, [], "released")["late_id"].to_pylist() == ["0010"], "open ones"
    assert (
        late.chosen(place, ["0011"], "released").num_rows == 1
        and len(late.listed(place, None)) == 2
    )
    with pytest.raises(TerminalError):
        late.chosen(place, ["0011"], "discarded")


def test_a_decision_alone_makes_a_slice(tmp_path: Path) -> None:
    it = Project(tmp_path)
    it.write([1, 2])
    version = it.publish()
    it.pin()
    assert it.look().units == 0
    place = Place(it.layout, 1, 2)
    late.decide(place, told(1), "discarded", by="me", note="", at=NOW)
    assert it.look().units == 0, "nothing counts that did not"
    late.decide(place, told(1), "released", by="me", note="", at=NOW)
    look = it.look()
    assert look.units == 1 and "late rows" in look.reasons[0]
    (piece,) = it.pin()
    assert (piece["fill"], piece["start"], piece["until"]) == (False, version, version)
    assert (piece["decided_from"], piece["decided"]) == (0, 2) and it.look().units == 0
    it.write([3])
    newest = it.publish()
    late.decide(place, told(2), "released", by="me", note="", at=NOW)
    (piece,) = it.pin()
    assert (piece["start"], piece["until"], piece["decided_from"], piece["decided"]) == (
        version,
        newest,
        2,
        3,
    )
    (tmp_path / "lake/_draindown/p/d/late").rename(tmp_path / "gone")
    with pytest.raises(TerminalError) as error:
        it.look()
    assert error.value.code == "source-replaced" and "decisions" in error.value.found


def test_what_compacted_a_quiet_source_is_read_instead(tmp_path: Path) -> None:
    it = Project(tmp_path)
    it.write([1])
    it.write([2])
    version = it.publish()
    it.pin()
    it.source.read_up_to(1, 2)
    done = CommitProperties(app_transactions=[Transaction(it.layout.app_id(1, "rows"), 0)])
    write_deltalake(it.layout.tables.target.path, pa.table({"c": [1]}), commit_properties=done)
    table = DeltaTable(it.upstream.tables.target.path)
    table.optimize.compact()
    newest = it.publish()
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    late.decide(Place(it.layout, 1, 2), told(1), "released", by="me", note="", at=NOW)
    (piece,) = it.pin()
    assert newest == version + 1 and (piece["start"], piece["until"], piece["rows"]) == (
        version,
        newest,
        0,
    )
    (reader,) = registered.readers(it.upstream)
    assert reader.snapshot, "its rows are read"
    declared = it.spec.declared("d")
    assert isinstance(declared, DerivedFlow)
    assert proof(it.layout, declared.source).sources[0].version == newest
    it.write([3])
    it.publish()
    (source,) = proof(it.layout, declared.source).sources
    assert source.row_count == 2, "the last version with the rows that were read"
    Path(source.table.file_uris()[0]).unlink()
    with pytest.raises(TerminalError) as error:
        proof(it.layout, declared.source)
    assert error.value.code == "history-gone" and error.value.next[0].startswith(
        "draindown run p/d "
    )


class Accepting:
    """A flow of hourly counts that accepts two hours, its source, and its table: without Spark."""

    def __init__(self, home: Path) -> None:
        flows = {
            "t": {"source": {"files": "x/*", "format": "json"}, "columns": {"at": "timestamp"}},
            "d": {
                "source": {"table": "t"},
                "window": {"time": "at", "size": "1 hour", "measures": {"c": "count(*)"}},
                "allowed_lateness": "2 hours",
            },
        }
        self.home, document = home, {"pipeline": "p", "lake": str(home / "lake"), "flows": flows}
        self.spec = PipelineSpec.model_validate(document)
        path = home / "dags" / "pipelines" / "p.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(document))
        self.layout, self.source = self.spec.layout("d"), self.spec.layout("t").tables.target.path
        declared = self.spec.declared("d")
        assert isinstance(declared, DerivedFlow)
        self.flow = declared
        # a row an hour, each arriving so much later
        self.rows = [
            (hour, timedelta(hours=2, microseconds=by)) for hour, by in enumerate((0, 1, -1, 9, 9))
        ]
        write_deltalake(
            self.source,
            pa.Table.from_pylist(
                [
                    {
                        "at": self.at(hour),
                        "_arrived_at": self.at(hour) + by,
                        "_origin": {"input": "f", "position": hour},
                    }
                    for hour, by in self.rows
                ]
                + [
                    {
                        "at": self.at(9),
                        "_arrived_at": None,
                        "_origin": {"input": "f", "position": 9},
                    }
                ]
            ),
        )
        place = Place(self.layout, 1, 2)
        came = self.at(3) + self.rows[3][1]
        late.decide(place, told(3, at=came, unit="f"), "released", by="me", note="", at=NOW)
        # of another topic at this place: it arrived at another time
        late.decide(place, told(4, at=NOW, unit="f"), "released", by="me", note="", at=NOW)

    @staticmethod
    def at(hour: int) -> datetime:
        return NOW + timedelta(hours=hour)

    def holds(self, *hours: int, decided: int = 2) -> bool:
        """Whether a table with the windows of these hours proves."""
        told = Counter(hours)
        rows = [
            {"window_start": self.at(h), "window_end": self.at(h + 1), "c": n}
            for h, n in told.items()
        ]
        write_deltalake(
            self.layout.tables.target.path, pa.Table.from_pylist(rows), mode="overwrite"
        )
        table, source = self.layout.tables.target, Table(self.source)
        return prove(self.layout, self.flow, [source], table, 1.0, decided).holds


def test_a_proof_leaves_out_late_rows_but_for_those_applied(tmp_path: Path) -> None:
    it = Accepting(tmp_path)
    assert it.holds(0, 2, 3, 9) and it.holds(0, 2, 9, decided=0)
    assert not it.holds(0, 1, 2, 3, 9) and not it.holds(0, 2, 3, 4, 9) and not it.holds(0, 2, 9)


_APPEND = {
    "source": {"files": "x/*", "format": "json"},
    "columns": {"k": "string", "at": "timestamp"},
}
_KINDS: dict[str, Any] = {
    "session": {
        "source": {"table": "t"},
        "session": {
            "time": "at",
            "gap": "1 hour",
            "group_by": ["k"],
            "measures": {"c": "count(*)"},
        },
    },
    "join": {
        "source": {"table": "t"},
        "join": {
            "table": "u",
            "on": ["k"],
            "interval": {"left": "at", "right": "at", "between": ["0", "1 hour"]},
            "how": "left_outer",
            "columns": {"at": "seen"},
        },
    },
}


def _proves(home: Path, kind: str, decided: int, *found: tuple[Any, ...]) -> bool:
    """Whether rows of a session (start, end, number) or a join (left and right position) prove.

    Of three rows of each table, an hour apart, the second and the third came late; of the third
    ones a person applied that of table `t`.
    """
    flows = {"t": _APPEND, "u": _APPEND, "d": _KINDS[kind] | {"allowed_lateness": "2 hours"}}
    spec = PipelineSpec.model_validate(
        {"pipeline": "p", "lake": str(home / "lake"), "flows": flows}
    )
    layout, flow, at = spec.layout("d"), spec.declared("d"), Accepting.at
    assert isinstance(flow, DerivedFlow)
    tables = {}
    for name in ("t", "u"):
        rows = [
            {
                "k": "a",
                "at": at(hour),
                "_arrived_at": at(hour + by),
                "_origin": {"input": "f", "position": hour},
            }
            for hour, by in enumerate((0, 3, 3))
        ]
        write_deltalake(
            spec.layout(name).tables.target.path, pa.Table.from_pylist(rows), mode="overwrite"
        )
        tables[name] = spec.layout(name).tables.target
    if not late.newest(layout):
        late.decide(
            Place(layout, 1, 2), told(2, at=at(5), unit="f"), "released", by="me", note="", at=NOW
        )
    if kind == "session":
        made = [
            {"k": "a", "session_start": at(start), "session_end": at(end), "c": number}
            | {"session_seconds": Decimal((end - start - 1) * 3600).quantize(Decimal("0.000001"))}
            for start, end, number in found
        ]
    else:
        made = [
            {"k": "a", "time_bucket": at(one), "left_origin": f"f:{one}", "at": at(one)}
            | {
                "right_origin": None if other is None else f"f:{other}",
                "seen": None if other is None else at(other),
            }
            for one, other in found
        ]
    write_deltalake(
        layout.tables.target.path,
        pa.Table.from_pylist(made),
        mode="overwrite",
        schema_mode="overwrite",
    )
    sources = [tables[one.table] for one in flow.source.read]
    return prove(layout, flow, sources, layout.tables.target, 1.0, decided).holds


def test_a_proof_of_sessions_leaves_out_late_rows(tmp_path: Path) -> None:
    assert _proves(tmp_path, "session", 0, (0, 1, 1))
    assert _proves(tmp_path, "session", 1, (0, 1, 1), (2, 3, 1))
    assert not _proves(tmp_path, "session", 0, (0, 1, 1), (2, 3, 1)), "it was applied later"
    assert not _proves(tmp_path, "session", 1, (0, 3, 3)), "the second one is late"


def test_a_proof_of_a_join_leaves_out_late_rows_of_each_side(tmp_path: Path) -> None:
    assert _proves(tmp_path, "join", 0, (0, 0))
    assert _proves(tmp_path, "join", 1, (0, 0), (2, None)), (
        "the right row of the same record was not applied"
    )
    assert not _proves(tmp_path, "join", 1, (0, 0), (2, 2))
    assert not _proves(tmp_path, "join", 1, (0, 0), (0, 1), (2, None)), "a late row matches nothing"
    assert not _proves(tmp_path, "join", 1, (0, 0), (1, None), (2, None)), (
        "and is not kept without a match"
    )


def test_late_rows_are_listed_and_decided_by_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    it = Accepting(tmp_path)
    pinned(it.layout, 1, fill=True)
    rows = [seen(number, 1) for number in (1, 3, 4)]
    write_deltalake(it.layout.tables.late.path, pa.Table.from_pylist(rows))
    done = CommitProperties(app_transactions=[Transaction(it.layout.app_id(1, "rows"), 0)])
    write_deltalake(it.layout.tables.target.path, pa.table({"c": [1]}), commit_properties=done)
    assert generations.first_unread(it.layout, 1) == 2

    def typed(*words: str) -> Any:
        capsys.readouterr()
        code = main(["--root", str(tmp_path), "late", *words, "--json"])
        out = capsys.readouterr()
        return json.loads(out.out) if code == 0 else (code, out.err)

    listed = typed("list", "p")["d"]
    assert [row["late_id"] for row in listed["rows"]] == ["0004", "0003", "0001"] and listed[
        "counts"
    ]["open"] == 3
    assert (
        main(["--root", str(tmp_path), "late", "list", "p"]) == 0
        and "3 open" in capsys.readouterr().out
    )
    assert (
        typed("release", "p", "--id", "0004")[0] == 2
        and typed("list", "p")["d"]["counts"]["open"] == 3
    )
    assert typed("release", "p", "--id", "0004", "--yes") == {"released": 1}
    assert typed("discard", "p", "--yes") == {"discarded": 2}
    assert typed("list", "p")["d"]["counts"] == {
        "open": 0,
        "released": 1,
        "discarded": 2,
        "gone": 0,
    }
    pinned(it.layout, 2, fill=False)
    write_deltalake(
        it.layout.tables.late.path, pa.Table.from_pylist([seen(4, 2, "went")]), mode="append"
    )
    done = CommitProperties(app_transactions=[Transaction(it.layout.app_id(1, "rows"), 1)])
    write_deltalake(
        it.layout.tables.target.path, pa.table({"c": [1]}), mode="append", commit_properties=done
    )
    listed = typed("list", "p", "--state", "gone")["d"]
    assert listed["counts"] == {"open": 0, "released": 0, "discarded": 2, "gone": 1}
    assert [(row["late_id"], row["state"]) for row in listed["rows"]] == [("0004", "gone")]
    request = Request(spec=it.spec, flow="d", step="drain", run_id="r", root=str(tmp_path))
    assert "1 gone" in examine(request).looked["late"]
    code, told = typed("release", "p", "--id", "0004", "--yes")
    assert code == 78 and "unknown-late-row" in told, "applied is final"
    assert late.newest(it.layout) == 3 and applied(it.layout, 9) == [3, 4, 4]
    assert typed("list", "p/t")[0] == 2


def test_doctor_tells_of_open_late_rows(tmp_path: Path) -> None:
    it = Accepting(tmp_path)
    pinned(it.layout, 1, fill=True)
    write_deltalake(it.layout.tables.late.path, pa.Table.from_pylist([seen(1, 1)]))
    done = CommitProperties(app_transactions=[Transaction(it.layout.app_id(1, "rows"), 0)])
    write_deltalake(it.layout.tables.target.path, pa.table({"c": [1]}), commit_properties=done)
    request = Request(spec=it.spec, flow="d", step="drain", run_id="r", root=str(tmp_path))
    assert "late-rows" in {one.code for one in examine(request).symptoms}
    path = tmp_path / "dags" / "pipelines" / "p.yaml"
    without = json.loads(path.read_text())
    del without["flows"]["d"]["allowed_lateness"]
    found = examine(request.model_copy(update={"spec": PipelineSpec.model_validate(without)}))
    assert "late-rows" not in {one.code for one in found.symptoms} and "late" not in found.looked, (
        "none is late now"
    )
