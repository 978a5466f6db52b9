"""`sinks`: what a pipeline file may say of a flow's sinks, and what is refused with its line and
the way out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from draindown.base.errors import TerminalError
from draindown.config.loader import load
from draindown.config.models import PipelineSpec
from draindown.config.sinks import FlowSink
from draindown.flow import sink_columns
from draindown.ledger.rows import BatchRow, conserve, sink_totals
from draindown.runs.request import Request

URL = "postgresql://u:${secret:X}@host:5432/d"
POSTGRES = {"postgres": {"url": URL, "table": "alerts"}}
KAFKA = {"kafka": {"topic": "t", "bootstrap_servers": "k:9092"}}
PLACED = {"kafka": {**KAFKA["kafka"], "partition_by": ["n"]}}
LANDING = {
    "source": {"files": "landing/*", "format": "json"},
    "columns": {"id": "string not null", "n": "int not null", "flagged": "boolean"},
    "target": {"keys": ["id"], "sequence_by": ["n"]},
}
LANDED_HISTORY = {**LANDING, "target": {**LANDING["target"], "stored_as_scd_type": 2}}
APPENDING = {**LANDING, "target": {}}
DERIVED = {
    "source": {"table": "f"},
    "window": {"time": "at", "size": "5 minutes", "measures": {"rows": "count(*)"}},
}


def _document(sink: dict[str, Any], flow: dict[str, Any] = LANDING) -> dict[str, Any]:
    flows = (
        {"f": {**LANDING, "columns": {**LANDING["columns"], "at": "timestamp"}}}
        if flow is DERIVED
        else {}
    )
    return {
        "pipeline": "p",
        "lake": "lake",
        "flows": {**flows, "g": {**flow, "sinks": {"a": sink}}},
    }


def _sink(sink: dict[str, Any], flow: dict[str, Any] = LANDING) -> FlowSink:
    return PipelineSpec.model_validate(_document(sink, flow)).declared("g").sinks["a"]


@pytest.mark.parametrize(
    ("sink", "flow", "where", "found"),
    [
        (
            {**POSTGRES, "where": "flaggd"},
            LANDING,
            "where",
            "no column 'flaggd'; did you mean 'flagged'?",
        ),
        ({**POSTGRES, "where": "lowr(id) = 'x'"}, LANDING, "where", "Spark has no function 'lowr'"),
        ({**POSTGRES, "where": "n > rand()"}, LANDING, "where", "not determined by the row"),
        (
            {**POSTGRES, "where": "windw_start > '2000'"},
            DERIVED,
            "where",
            "no column 'windw_start'",
        ),
        ({**POSTGRES, "columns": ["id", "m"]}, LANDING, "columns", "no column 'm'"),
        (
            {**POSTGRES, "columns": ["n"]},
            LANDING,
            "columns",
            "lacks id: the sink's keys are those of the table",
        ),
        ({**POSTGRES, "columns": ["id", "id"]}, LANDING, "columns", "names 'id' twice"),
        (
            {**POSTGRES, "columns": {"id": "x", "n": "x"}},
            LANDING,
            "columns",
            "sends two columns as 'x'",
        ),
        (
            {**POSTGRES, "from": "quarantine"},
            DERIVED,
            "from",
            "give the sink to the flow that it reads",
        ),
        ({**POSTGRES, "from": "quarantine", "where": "n > 1"}, LANDING, "where", "no column 'n'"),
        (
            POSTGRES,
            LANDED_HISTORY,
            "a",
            "give the sink to a flow that derives the history from an append table",
        ),
        ({**POSTGRES, "after": "gate"}, LANDING, "after", "put a derived flow between"),
        ({**KAFKA, "format": "avro"}, LANDING, "format", "values are JSON"),
        ({**POSTGRES, "may_fail": True}, LANDING, "may_fail", "a sink that fails ends its batch"),
        ({"mysql": {}}, LANDING, "mysql", "no such sink: postgres or kafka"),
        ({}, LANDING, "a", "needs one of postgres or kafka"),
        ({**POSTGRES, **KAFKA}, LANDING, "a", "has postgres and kafka: keep one"),
        (
            {"kafka": {**KAFKA["kafka"], "marker_topic": "m"}},
            LANDING,
            "marker_topic",
            "counts for delivery: exactly_once only",
        ),
        (
            {**POSTGRES, "delivery": "at_least_once"},
            LANDING,
            "delivery",
            "a batch is a transaction",
        ),
        ({**PLACED, "columns": ["id"]}, APPENDING, "columns", "lacks n, which partition_by names"),
        (
            {**PLACED, "columns": {"n": "uid", "id": "id"}},
            APPENDING,
            "columns",
            "lacks n, which partition_by names",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_its_line_and_the_way_out(
    tmp_path: Path, sink: dict[str, Any], flow: dict[str, Any], where: str, found: str
) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(yaml.safe_dump(_document(sink, flow), sort_keys=False))
    with pytest.raises(TerminalError) as raised:
        load(path, {})
    assert raised.value.code == "invalid-pipeline"
    line = next(one for one in raised.value.found.splitlines() if found in one)
    number = int(line.removeprefix(f"{path}:").partition(":")[0])
    assert (
        where in " ".join(path.read_text().splitlines()[number - 1 : number + 1])
        or ".sinks" in line
    )


def test_options_of_transactions_belong_to_exactly_once() -> None:
    options = {"marker_topic": "m", "transaction_timeout": "5 minutes"}
    sink = _sink({"kafka": {**KAFKA["kafka"], **options, "delivery": "exactly_once"}})
    assert sink.delivered == "exactly_once" and _sink(KAFKA).delivered == "at_least_once"
    assert FlowSink.model_validate(sink.model_dump()) == sink
    assert FlowSink.model_validate(_sink(KAFKA).model_dump()) == _sink(KAFKA), (
        "as a request carries it"
    )
    assert _sink(POSTGRES).delivered == "exactly_once"


@pytest.mark.parametrize(
    ("flow", "keys"),
    [
        (
            {
                "session": {
                    "time": "at",
                    "gap": "2 minutes",
                    "group_by": ["id"],
                    "measures": {"n": "count(*)"},
                }
            },
            ["id", "session_start"],
        ),
        ({"deduplicate": {"keys": ["n"], "sequence_by": ["at"]}}, ["n"]),
        ({"top": {"group_by": ["n"], "order_by": ["at"], "rows": 2}}, ["n", "position"]),
    ],
)
def test_a_sink_of_a_derived_flow_has_the_keys_that_name_its_rows(
    flow: dict[str, Any], keys: list[str]
) -> None:
    source = {**LANDING, "columns": {**LANDING["columns"], "at": "timestamp"}}
    flows = {
        "f": source,
        "g": {"source": {"table": "f"}, **flow, "sinks": {"a": POSTGRES, "b": KAFKA}},
    }
    spec = PipelineSpec.model_validate({"pipeline": "p", "lake": "lake", "flows": flows})
    asked = Request(spec=spec, flow="g", step="drain", run_id="r", root=".")
    types = dict.fromkeys([*keys, "value", "_changed_at"], "string")
    for sink in asked.declared.sinks.values():
        sent = sink_columns.columns_of(asked, sink, types)
        assert [name for name, column in sent.items() if column.key] == keys
        assert list(sent) == [*keys, "value"]


def test_columns_of_a_transform_are_known_to_a_run_alone() -> None:
    assert _sink(
        {**POSTGRES, "where": "made_up > 1", "columns": ["id", "made_up"]},
        {**LANDING, "transform": "a.b"},
    )


def test_keys_come_first_and_keep_their_names_at_the_sink() -> None:
    sink = _sink({**POSTGRES, "columns": {"n": "amount", "id": "key"}})
    assert sink.named(["id", "n", "flagged", "_changed_at"], ["id"]) == {"id": "key", "n": "amount"}
    assert list(_sink(POSTGRES).named(["n", "id", "_changed_at"], ["id"])) == ["id", "n"]
    assert list(_sink(POSTGRES, APPENDING).named(["n", "id", "_origin"], ["_origin"])) == [
        "_origin",
        "n",
        "id",
    ]


@pytest.mark.parametrize("columns", [None, ["n"], {"id": "n"}, {"flagged": "n", "n": "m"}])
def test_messages_are_placed_by_the_names_that_columns_have_at_the_sink(columns: Any) -> None:
    sink = _sink({**PLACED, "columns": columns}, APPENDING)
    assert set(PLACED["kafka"]["partition_by"]) <= set(
        sink.named(list(APPENDING["columns"]), ["_origin"]).values()
    )


def test_the_fingerprint_follows_what_decides_the_rows_of_the_sink() -> None:
    same = _sink(POSTGRES).fingerprint(["id"], "UTC")
    assert (
        _sink({"postgres": {**POSTGRES["postgres"], "timeout": "5 seconds"}}).fingerprint(
            ["id"], "UTC"
        )
        == same
    )
    others = [
        {**POSTGRES, "where": "flagged"},
        {**POSTGRES, "columns": ["id"]},
        {"postgres": {**POSTGRES["postgres"], "table": "others"}},
    ]
    assert len({_sink(one).fingerprint(["id"], "UTC") for one in others} | {same}) == 4
    assert _sink(POSTGRES).fingerprint(["id", "n"], "UTC") != same
    assert _sink(POSTGRES).fingerprint(["id"], "Europe/Berlin") == same, "there is no condition"
    judged = _sink({**POSTGRES, "where": "hour(at) > 9"})
    assert judged.fingerprint(["id"], "Europe/Berlin") != judged.fingerprint(["id"], "UTC")


def _row(**sinks: dict[str, int]) -> BatchRow:
    counts = {"records": 5, "inserted": 3, "quarantined": 2, "reasons": {"type": 2}}
    return BatchRow("p", "f", 1, 0, "r", sinks=sinks, **counts)  # type: ignore[arg-type]


def test_what_each_sink_got_must_add_up_to_what_was_applied_or_refused() -> None:
    good = {"sent": 1, "deleted": 0, "filtered": 1, "unsendable": 1}
    dead = {"sent": 2, "deleted": 0, "filtered": 0, "unsendable": 0, "quarantined": 2}
    row = conserve(_row(good=good, dead=dead))
    assert BatchRow.from_dict(row.as_dict()) == row
    assert sink_totals([row, row])["good"] == {
        "sent": 2,
        "deleted": 0,
        "filtered": 2,
        "unsendable": 2,
    }
    for wrong in ({**good, "filtered": 0}, {**dead, "quarantined": 3}):
        with pytest.raises(TerminalError, match="sink wrong") as raised:
            conserve(_row(wrong=wrong))
        assert raised.value.code == "ledger-does-not-add-up"
