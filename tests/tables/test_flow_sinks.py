"""What plan, doctor and the commands say of a flow's sinks, without a JVM."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake

from draindown.base.clock import now
from draindown.base.errors import TerminalError, TransientError
from draindown.cli.program import main
from draindown.config.sinks import FlowSink
from draindown.doctor.examination import examine
from draindown.flow import sink_columns, sink_identity, sink_state
from draindown.flow.sink_state import Sending, SinkState
from draindown.planning import compaction
from draindown.planning.plan import plan
from draindown.recovery import reset, sink_bases
from draindown.runs.request import Request
from draindown.sinks import registry
from draindown.sinks.port import SinkBatch
from draindown.sources.tables import readers, registered
from draindown.sources.tables.registered import Reader
from tests.flowfiles import AT, drained, waiting
from tests.sinks.fake import FakeServer, FakeSink

SINK = {"postgres": {"url": "postgresql://u:${secret:X}@host:5432/d", "table": "a"}}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    found = FakeServer()

    def made(spec: Any, place: Any, environ: Mapping[str, str]) -> FakeSink:
        return FakeSink(found, place)

    monkeypatch.setitem(registry.MAKERS, "postgres", made)
    yield found


def with_sink(asked: Request, **more: Any) -> Request:
    sinks = {"a": FlowSink.model_validate({**SINK, **more})}
    flow = asked.flow_spec.model_copy(update={"sinks": sinks})
    return asked.model_copy(
        update={"spec": asked.spec.model_copy(update={"flows": {asked.flow: flow}})}
    )


def filled(asked: Request, *sendings: Sending, name: str = "a", **more: Any) -> SinkState:
    known = sink_columns.holds_of(asked, asked.declared.sinks["a"])
    state = SinkState(filled=known.fingerprint, sendings=sendings, **more)
    state.write(asked.layout, name)
    return state


def symptoms(asked: Request) -> dict[str, str]:
    return {one.code: one.next for one in examine(asked).symptoms if one.part == "sinks"}


def sending(asked: Request, number: int, *, sent: bool = True) -> Sending:
    return Sending(asked.layout.app_id(1, "rows"), number, "drain", 1, "0", sent)


def test_a_sink_that_was_added_to_a_table_with_rows_must_be_filled(
    tmp_path: Path, server: FakeServer
) -> None:
    asked = with_sink(drained(tmp_path))
    fill = "draindown sink resync p/f a --yes"
    _, findings = plan(asked, AT)
    assert [(one.kind, one.subject, one.next) for one in findings] == [("sink-stale", "a", fill)]
    assert symptoms(asked) == {"sink-stale": fill}
    filled(asked)
    assert plan(asked, AT)[1] == []
    assert symptoms(asked) == {}


@pytest.mark.parametrize(
    "edited",
    [{"where": "n > 1"}, {"columns": ["id"]}, {"columns": {"id": "key", "n": "n"}}],
    ids=str,
)
def test_plan_and_doctor_ask_for_a_fill_of_a_sink_that_was_edited(
    tmp_path: Path, server: FakeServer, edited: dict[str, Any]
) -> None:
    asked = drained(tmp_path)
    filled(with_sink(asked))
    assert plan(with_sink(asked), AT)[1] == []
    after = with_sink(asked, **edited)
    (found,) = plan(after, AT)[1]
    fill = "draindown sink resync p/f a --yes"
    assert (found.kind, found.subject, found.next) == ("sink-stale", "a", fill)
    assert sink_state.EDITED in found.detail
    assert symptoms(after) == {"sink-stale": fill}
    filled(after)
    assert plan(after, AT)[1] == []


def test_a_table_keeps_the_version_before_a_rebuild_until_each_sink_was_compared(
    tmp_path: Path, server: FakeServer
) -> None:
    asked = with_sink(drained(tmp_path))
    layout, table = asked.layout, asked.layout.tables.target
    for name in ("a", "b"):
        filled(asked, name=name)
    sink_bases.swapped(layout, table.version - 1)
    reader = Reader("p", "f", table.id, table.version - 1, snapshot=True, sinks=True)
    assert registered.readers(layout) == [reader]
    told = examine(asked).looked["readers"]
    assert "p/f (its sinks) from version" in told
    assert compaction.kept_back(layout, 0, now() + timedelta(days=20)).startswith(
        "old files stay: p/f (its sinks)"
    )
    assert not [one for one in examine(asked).symptoms if one.part == "readers"]
    with pytest.raises(TerminalError) as raised:
        readers.refuse_declared(asked, "p", "f")
    assert raised.value.code == "reader-declared"
    assert sink_bases.readable(layout, (table.version - 1,), accept_missing=False, fill="fill") == [
        table.version - 1
    ]
    sink_bases.leave_out(layout, {"a"})  # the other one is gone from the file
    assert SinkState.read(layout, "b").stale == sink_state.LEFT_OUT
    assert registered.readers(layout) == [reader]
    filled(asked)
    sink_bases.keep(layout)
    assert registered.readers(layout) == []
    assert compaction.kept_back(layout, 0, now() + timedelta(days=20)) == ""


def test_a_version_whose_files_are_gone_is_named(tmp_path: Path, server: FakeServer) -> None:
    asked = with_sink(drained(tmp_path))
    table = asked.layout.tables.target
    gone = Path(table.path) / table.files()[0]["path"]
    gone.unlink()
    with pytest.raises(TerminalError, match=gone.name) as raised:
        sink_bases.readable(asked.layout, (table.version,), accept_missing=False, fill="fill")
    assert raised.value.code == "history-gone"
    assert (
        sink_bases.readable(asked.layout, (table.version,), accept_missing=True, fill="fill") == []
    )
    with pytest.raises(TerminalError, match="its log") as raised:
        sink_bases.readable(asked.layout, (table.version + 5,), accept_missing=False, fill="fill")
    assert raised.value.code == "history-gone"


@pytest.mark.parametrize(
    ("kind", "level", "then"),
    [
        ("drain", "note", "draindown run p/f "),
        ("withdraw", "wrong", "draindown gate withdraw p/f "),
        ("release", "wrong", "draindown quarantine release p/f "),
        ("replay:1", "wrong", "draindown doctor p/f "),
    ],
)
def test_a_batch_that_only_the_sink_has_names_what_finishes_it(
    tmp_path: Path, server: FakeServer, kind: str, level: str, then: str
) -> None:
    asked = with_sink(drained(tmp_path))
    filled(asked, Sending(asked.layout.app_id(1, "rows", kind), 2, kind, 1, "0", False))
    (found,) = [one for one in examine(asked).symptoms if one.code == "sink-batch-in-flight"]
    assert found.level == level and found.next.startswith(then)


def test_a_batch_that_only_the_sink_has_stops_a_reset_until_it_is_given_up(
    tmp_path: Path, server: FakeServer
) -> None:
    asked = with_sink(drained(tmp_path))
    filled(asked, sending(asked, 2, sent=False))
    assert "sink-batch-in-flight" in symptoms(asked)
    found = reset.plan(asked)
    with pytest.raises(TransientError, match="not in the table yet") as raised:
        reset.begin(asked, found, by="me", accept_missing=False)
    assert raised.value.code == "sink-batch-in-flight"
    assert reset.plan(asked) == found
    (lost,) = sink_state.give_up(asked.layout, "a", by="me", reason="why")
    assert lost.number == 2
    assert SinkState.read(asked.layout, "a").given_up[0]["reason"] == "why"
    assert "sink-batch-in-flight" not in symptoms(asked)
    assert "sink-stale" in symptoms(asked)
    reset.begin(asked, found, by="me", accept_missing=False)


def test_a_batch_that_the_table_has_is_not_given_up(tmp_path: Path, server: FakeServer) -> None:
    asked = with_sink(drained(tmp_path))
    state = filled(asked, sending(asked, 1))
    assert sink_state.give_up(asked.layout, "a", by="me", reason="why") == []
    assert SinkState.read(asked.layout, "a") == state


def test_a_database_that_was_restored_from_an_older_copy_is_found(
    tmp_path: Path, server: FakeServer
) -> None:
    asked = with_sink(drained(tmp_path))
    one, place = sending(asked, 1), sink_columns.place_of(asked, "a")
    filled(asked, one)
    batch = SinkBatch(place, one.writer, 1, 1, "drain", 1, 1, 1, "0")
    server.batches[place, one.writer] = batch
    assert symptoms(asked) == {}
    server.batches[place, one.writer] = replace(batch, number=0)
    assert symptoms(asked) == {"sink-behind": "draindown sink resync p/f a --yes"}
    server.batches.clear()  # the copy is older than the flow
    assert symptoms(asked) == {"sink-behind": "draindown sink resync p/f a --yes"}
    filled(asked, Sending("fill:p.f.a:7", 1, sink_state.FILL, 5, "", sent=True))
    assert "sink-behind" in symptoms(asked), "it was restored to a state before the fill"
    server.batches[place, "fill:p.f.a:7"] = replace(batch, writer="fill:p.f.a:7")
    assert symptoms(asked) == {}


@pytest.mark.parametrize("is_older", ["sink", "lake", "neither"])
def test_what_was_restored_stays_known_once_batches_went_on(
    tmp_path: Path, server: FakeServer, is_older: str
) -> None:
    asked = with_sink(drained(tmp_path))
    one, place = sending(asked, 1), sink_columns.place_of(asked, "a")
    there = {"sink": 0, "lake": 4, "neither": 1}[is_older]
    server.batches[place, one.writer] = SinkBatch(
        place, one.writer, there, 1, "drain", there, 1, 1, "0"
    )
    for stale in ("", sink_state.SWAPPED, sink_state.UNFILLED):
        filled(asked, one, stale=stale)
        sink_columns.note_restored(asked, asked.layout, "a", FakeSink(server, place))
        keeps = is_older == "neither" or stale == sink_state.UNFILLED
        assert SinkState.read(asked.layout, "a").stale == (stale if keeps else sink_state.RESTORED)


def test_a_lake_is_the_same_one_to_its_sinks_at_another_address(
    tmp_path: Path, server: FakeServer
) -> None:
    asked = with_sink(drained(tmp_path))
    before = sink_columns.place_of(asked, "a")
    assert before.lake == asked.layout.lake, "nothing was sent yet"
    sink_identity.next_epoch(asked.layout, lambda: None)
    moved = tmp_path / "moved"
    Path(asked.layout.lake).rename(moved)
    asked = asked.model_copy(update={"spec": asked.spec.model_copy(update={"lake": str(moved)})})
    assert sink_columns.place_of(asked, "a") == before
    sink_identity.next_epoch(asked.layout, lambda: None)
    assert sink_columns.place_of(asked, "a") == before


def test_a_sink_of_refused_rows_goes_by_these(tmp_path: Path, server: FakeServer) -> None:
    """The table has rows, and nothing was ever refused."""
    asked = with_sink(drained(tmp_path), **{"from": "quarantine"})
    assert plan(asked, AT)[1] == [] and symptoms(asked) == {}
    write_deltalake(asked.layout.tables.quarantine.path, pa.table({"quarantine_id": ["q"]}))
    assert [one.kind for one in plan(asked, AT)[1]] == ["sink-stale"]


def test_conditions_are_judged_in_the_time_zone_of_the_source(
    tmp_path: Path, server: FakeServer
) -> None:
    asked = with_sink(drained(tmp_path), where="n > 1")
    source = asked.flow_spec.source.model_copy(update={"timezone": "Europe/Berlin"})
    flow = asked.flow_spec.model_copy(update={"source": source})
    edited = asked.model_copy(
        update={"spec": asked.spec.model_copy(update={"flows": {asked.flow: flow}})}
    )
    filled(asked)
    assert [one.kind for one in plan(edited, AT)[1]] == ["sink-stale"], "other rows match now"


def test_an_undone_reset_strands_no_batch(tmp_path: Path, server: FakeServer) -> None:
    asked = with_sink(drained(tmp_path))
    reset.begin(asked, reset.plan(asked), by="me", accept_missing=False)
    filled(asked, Sending(asked.layout.app_id(2, "rows"), 0, "drain", 1, "0"))
    with pytest.raises(TransientError, match="not in the table yet"):
        reset.undo(asked, by="me")
    without = asked.model_copy(update={"spec": drained_spec_without(asked)})
    with pytest.raises(TransientError, match="not in the table yet"):
        reset.begin(without, reset.plan(without), by="me", accept_missing=False)


def drained_spec_without(asked: Request) -> Any:
    flow = asked.flow_spec.model_copy(update={"sinks": {}})
    return asked.spec.model_copy(update={"flows": {asked.flow: flow}})


def test_a_batch_from_before_the_sink_recorded_any_is_not_missed_there(
    tmp_path: Path, server: FakeServer
) -> None:
    """`delivery` became exactly once after it."""
    asked = with_sink(drained(tmp_path))
    filled(asked, replace(sending(asked, 1), recorded=False))
    assert symptoms(asked) == {}
    filled(asked, sending(asked, 1))
    assert "sink-behind" in symptoms(asked)


def test_a_sink_that_does_not_answer_ends_the_plan_of_a_drain_and_no_idle_plan(
    tmp_path: Path, server: FakeServer
) -> None:
    def down(step: str) -> None:
        raise TransientError("sink-unreachable", tried="connect", found="no answer", next="again")

    server.fault = down
    (tmp_path / "idle").mkdir()
    idle = with_sink(drained(tmp_path / "idle"))
    filled(idle)
    plan(idle, AT)
    assert "sink-unreachable" in symptoms(idle)
    asked = waiting(tmp_path)
    file = tmp_path / "in" / "1.json"
    file.write_text('{"a": 1}\n')
    os.utime(file, (AT.timestamp() - 3600,) * 2)
    with pytest.raises(TransientError, match="no answer"):
        plan(with_sink(asked), AT)


def test_the_commands_list_and_skip(
    tmp_path: Path, server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = with_sink(drained(tmp_path))
    flows = {
        "f": {
            "source": {
                "files": asked.flow_spec.source.files,
                "format": "json",
                "max_files_per_trigger": 1,
            },
            "columns": {"id": "string not null", "n": "int not null"},
            "target": {"keys": ["id"], "sequence_by": ["n"]},
            "sinks": {"a": SINK},
        }
    }
    content = {"pipeline": "p", "lake": str(tmp_path / "lake"), "flows": flows}
    (tmp_path / "dags/pipelines").mkdir(parents=True)
    (tmp_path / "dags/pipelines/p.yaml").write_text(yaml.safe_dump(content))
    filled(asked, sending(asked, 2))

    def typed(*words: str) -> tuple[int, Any]:
        code = main(["--root", str(tmp_path), "sink", *words, "--json"])
        out = capsys.readouterr().out
        return code, json.loads(out) if out else None

    code, (listed,) = typed("list", "p")
    assert (code, listed["newest"], listed["stale"]) == (0, "drain 2", "")
    assert listed["place"] == "a at host:5432/d"
    skip = ("skip", "p", "a", "--note", "lost")
    assert typed(*skip)[0] == 2
    assert typed("skip", "p", "b", "--note", "lost", "--yes")[0] == 2
    looks = iter([{"a": sending(asked, 1)}])
    waiting = sink_state.in_flight
    with mock.patch.object(
        sink_state, "in_flight", lambda layout: next(looks, None) or waiting(layout)
    ):
        assert typed(*skip, "--yes") == (0, []), (
            "another batch is on its way than the one that was shown"
        )
    code, lost = typed(*skip, "--yes")
    assert (code, [one["number"] for one in lost]) == (0, [2])
    assert sink_state.GIVEN_UP in typed("list", "p")[1][0]["stale"]
    assert typed(*skip, "--yes") == (0, [])
    filled(asked, sending(asked, 2, sent=False))
    assert typed(*skip, "--key", '{"other": 1}', "--yes")[0] == 2
    assert typed(*skip, "--key", '{"id": "x"}')[0] == 2, "without --yes nothing is done"
    code, (row,) = typed(*skip, "--key", '{"id": "x"}', "--yes")
    assert (code, row["number"], row["key"], row["reason"]) == (0, 2, {"id": "x"}, "lost")
    assert typed("list", "p")[1][0]["stale"] == ""
