"""Derived flows in a pipeline file: their parts, the graph of flows, and what is refused, with file
and line.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from draindown.base.errors import TerminalError
from draindown.config import loader
from draindown.config.derived import DerivedFlow
from draindown.config.flow_graph import FlowGraph
from draindown.config.json_schema import schema
from draindown.config.landing import FlowSpec
from draindown.config.models import PipelineSpec
from draindown.config.ranking import total_order
from draindown.runs.request import Request

FLIGHTS: dict[str, Any] = {
    "source": {"files": "landing/*.json", "format": "json"},
    "columns": {
        "flight_id": "string not null",
        "updated_at": "timestamp not null",
        "carrier": "string",
        "at": "timestamp",
        "delay": "int",
        "speed": "double",
        "tags": "array<string>",
        "day": "date",
    },
    "target": {"keys": ["flight_id"], "sequence_by": ["updated_at"]},
}
WINDOW: dict[str, Any] = {
    "time": "at",
    "size": "1 hour",
    "group_by": ["carrier"],
    "measures": {"n": "count(*)"},
}
FIRST: dict[str, Any] = {"keys": ["carrier"], "sequence_by": ["at"]}
SESSION: dict[str, Any] = {
    "time": "at",
    "gap": "30 minutes",
    "group_by": ["carrier"],
    "measures": {"n": "count(*)"},
}
FOLD: dict[str, Any] = {
    "class": "shop.Basket",
    "group_by": ["carrier"],
    "order_by": ["at"],
    "gap": "1 hour",
    "columns": {"n": "bigint"},
    "state": {"n": "bigint"},
}
TOP: dict[str, Any] = {"group_by": ["carrier"], "order_by": ["delay desc", "at"], "rows": 3}
EVENTS: dict[str, Any] = {**FLIGHTS, "target": {}}
HISTORY: dict[str, Any] = {
    "keys": ["flight_id"],
    "sequence_by": ["updated_at"],
    "stored_as_scd_type": 2,
}
PER: dict[str, Any] = {
    "keys": ["carrier"],
    "sql": "select carrier, count(*) n from flights group by carrier",
}


def document(**flows: Any) -> dict[str, Any]:
    return {"pipeline": "p", "lake": "lake", "flows": {"flights": FLIGHTS, **flows}}


def derived(table: str = "flights", **parts: Any) -> dict[str, Any]:
    return {"source": {"table": table}, **(parts or {"window": WINDOW})}


def load(tmp_path: Path, content: dict[str, Any]) -> PipelineSpec:
    path = tmp_path / "p.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return loader.load(path, {})


def refused(tmp_path: Path, content: dict[str, Any]) -> list[str]:
    """The problems of the file, without its path: `line:column: path: message`."""
    with pytest.raises(TerminalError) as error:
        load(tmp_path, content)
    assert error.value.code == "invalid-pipeline"
    return [line.removeprefix(f"{tmp_path / 'p.yaml'}:") for line in error.value.found.splitlines()]


def test_a_window_names_its_rows_by_start_and_group(tmp_path: Path) -> None:
    found = load(tmp_path, document(hourly=derived())).flows["hourly"]
    assert isinstance(found, DerivedFlow) and found.kind == "window"
    assert found.window is not None and (found.window.size, found.window.step) == (3600, 3600)
    assert found.target.row_keys == found.target.essential == ["window_start", "carrier"]
    assert found.target.kind.name == "derived" and found.table_name("hourly") == "hourly"
    assert found.expressions == {("window", "measures", "n"): "count(*)"}


def test_a_query_names_its_rows_by_its_keys(tmp_path: Path) -> None:
    found = load(tmp_path, document(month=derived(query=PER))).flows["month"]
    assert (
        isinstance(found, DerivedFlow)
        and found.kind == "query"
        and found.target.row_keys == ["carrier"]
    )


def test_a_session_is_named_by_its_start(tmp_path: Path) -> None:
    found = load(tmp_path, document(visits=derived(session=SESSION))).flows["visits"]
    assert isinstance(found, DerivedFlow) and found.kind == "session" and found.session is not None
    assert found.target.row_keys == ["carrier", "session_start"] and found.session.gap == 1800
    assert found.stored_columns == [
        "carrier",
        "session_start",
        "session_end",
        "session_seconds",
        "n",
    ]
    assert found.source.sought == {"carrier": ["carrier"]}


def test_the_first_rows_are_named_by_their_keys_or_their_position(tmp_path: Path) -> None:
    spec = load(tmp_path, document(once=derived(deduplicate=FIRST), worst=derived(top=TOP)))
    once, worst = spec.flows["once"], spec.flows["worst"]
    assert (
        isinstance(once, DerivedFlow)
        and once.deduplicate is not None
        and once.target.row_keys == ["carrier"]
    )
    assert once.deduplicate.order == [("at", False)] and worst.target.row_keys == [
        "carrier",
        "position",
    ]
    assert isinstance(worst, DerivedFlow) and worst.top is not None
    assert worst.top.order == [("delay", True), ("at", False)] and worst.source.sought == {
        "carrier": ["carrier"]
    }
    # equal values of all that the file names are decided by the other columns, by name
    names = ["flight_id", "carrier", "at", "delay", "day"]
    assert total_order(worst.top, names)[2:] == [("day", False), ("flight_id", False)]
    assert total_order(once.deduplicate, names, descending=True)[1:] == [
        ("day", True),
        ("delay", True),
        ("flight_id", True),
    ]


def over_events(**target: Any) -> dict[str, Any]:
    flows = {
        "flights": EVENTS,
        "changes": {"source": {"table": "flights"}, "target": HISTORY | target},
    }
    return {**document(), "flows": flows}


def test_a_history_is_named_by_its_keys_and_start(tmp_path: Path) -> None:
    found = load(
        tmp_path, over_events(apply_as_deletes="delay < 0", track_history={"except": ["speed"]})
    )
    flow = found.flows["changes"]
    assert isinstance(flow, DerivedFlow) and flow.kind == "history" and flow.history is not None
    assert flow.target.keys == ["flight_id"] and flow.target.row_keys == ["flight_id", "__START_AT"]
    assert flow.target.statistics == ["flight_id", "__START_AT", "__END_AT"]
    assert flow.source.sought == {"flight_id": ["flight_id"]}
    names = ["flight_id", "updated_at", "carrier", "speed", "delay"]
    assert flow.history.tracked(names) == ["carrier", "delay"], "neither keys nor sequence"
    request = Request(spec=found, flow="changes", step="drain", run_id="r", root="/p")
    again = Request.decode(request.encode())
    assert again == request and again.places["target.apply_as_deletes"].startswith(
        f"{tmp_path / 'p.yaml'}:"
    )


@pytest.mark.parametrize(
    ("target", "path", "part"),
    [
        ({"keys": []}, "keys", "is required by a history"),
        ({"sequence_by": []}, "sequence_by", "is required by a history"),
        ({"keys": ["flights_id"]}, "keys[0]", "did you mean 'flight_id'?"),
        ({"keys": ["speed"]}, "keys[0]", "compares exactly"),
        ({"keys": ["carrier", "Carrier"]}, "keys", "twice"),
        ({"sequence_by": ["tags"]}, "sequence_by[0]", "plain type"),
        ({"sequence_by": ["Flight_id"]}, "sequence_by", "is a key"),
        ({"stored_as_scd_type": 1}, "stored_as_scd_type", "keep: last"),
        ({"stored_as_scd_type": 3}, "stored_as_scd_type", "must be 2"),
        ({"track_history": []}, "track_history", "a list of columns, or {except: [columns]}"),
        (
            {"track_history": {"but": ["delay"]}},
            "track_history",
            "a list of columns, or {except: [columns]}",
        ),
        ({"track_history": ["dely"]}, "track_history[0]", "did you mean 'delay'?"),
        (
            {"track_history": {"except": ["dely"]}},
            "track_history.except[0]",
            "did you mean 'delay'?",
        ),
        ({"track_history": ["flight_id"]}, "track_history", "is a key"),
        ({"apply_as_deletes": "dely > 1"}, "apply_as_deletes", "did you mean 'delay'?"),
        ({"apply_as_deletes": "rand() > 1"}, "apply_as_deletes", "rand"),
        ({"partition_by": ["carrier"]}, "partition_by[0]", "is no key"),
        ({"ignore_null_updates": True}, "ignore_null_updates", "newest value of each in a `query`"),
    ],
)
def test_what_a_history_cant_be_is_named(
    tmp_path: Path, target: dict[str, Any], path: str, part: str
) -> None:
    (problem,) = refused(tmp_path, over_events(**target))
    assert f": flows.changes.target.{path}: " in problem and part in problem


def test_no_event_of_a_history_is_late(tmp_path: Path) -> None:
    content = over_events()
    content["flows"]["changes"]["allowed_lateness"] = "2 days"
    (problem,) = refused(tmp_path, content)
    assert (
        ": flows.changes.allowed_lateness: history is what all events say in the order of their sequence"
        in problem
    )


def test_a_history_needs_a_table_with_all_events(tmp_path: Path) -> None:
    content = over_events()
    content["flows"]["flights"] = FLIGHTS
    (problem,) = refused(tmp_path, content)
    assert ": flows.changes.source.table: " in problem and "its earlier rows are gone" in problem
    content["flows"]["flights"] = EVENTS | {"drift": {"new_columns": "add"}}
    (problem,) = refused(tmp_path, content)
    assert ": flows.changes.target.track_history: must list the columns" in problem
    content["flows"]["changes"]["target"] = HISTORY | {"track_history": ["delay"]}
    assert load(tmp_path, content).flows["changes"]


@pytest.mark.parametrize(
    ("part", "path", "words"),
    [
        (
            {"target": FLIGHTS["target"] | {"track_history": ["delay"]}},
            "target.track_history",
            "is of a history",
        ),
        (
            {"target": FLIGHTS["target"] | {"from_snapshot": True}},
            "target.from_snapshot",
            "whole snapshots",
        ),
    ],
)
def test_what_landing_flows_lack_has_a_way_out(
    tmp_path: Path, part: dict[str, Any], path: str, words: str
) -> None:
    (problem,) = refused(tmp_path, {**document(), "flows": {"flights": FLIGHTS | part}})
    assert f": flows.flights.{path}: " in problem and words in problem


@pytest.mark.parametrize(
    ("column", "told"),
    [
        ("rank", "'rank', which the source has"),
        ("Rank", "'rank', which the source has as 'Rank': case doesn't tell columns apart"),
        (
            "POSITION",
            "'position', which the source has as 'POSITION': case doesn't tell columns apart",
        ),
    ],
)
def test_a_column_of_the_source_is_not_hidden_by_the_position(
    tmp_path: Path, column: str, told: str
) -> None:
    content = document(worst=derived(top=TOP | {"with_ties": True}))
    content["flows"]["flights"] = FLIGHTS | {"columns": FLIGHTS["columns"] | {column: "int"}}
    (line,) = refused(tmp_path, content)
    assert line.endswith(f"flows.worst.top: adds column {told}")


def test_a_landing_flow_stays_one(tmp_path: Path) -> None:
    spec = load(tmp_path, document(hourly=derived()))
    assert (
        isinstance(spec.flows["flights"], FlowSpec)
        and spec.flow("flights") is spec.flows["flights"]
    )
    with pytest.raises(TerminalError) as error:
        spec.flow("hourly")
    assert error.value.code == "derived-flow"
    assert spec.declared("hourly") is spec.flows["hourly"] and spec.layout(
        "hourly"
    ).tables.target.path.endswith("/tables/hourly")


def test_a_request_carries_derived_flows_and_their_places(tmp_path: Path) -> None:
    spec = load(tmp_path, document(hourly=derived(), month=derived(query=PER)))
    request = Request(spec=spec, flow="hourly", step="drain", run_id="r", root="/p")
    again = Request.decode(request.encode())
    assert again == request and again.declared.target.row_keys == ["window_start", "carrier"]
    assert again.places["window.measures.n"].endswith("p.yaml:31:9")


@pytest.mark.parametrize(
    ("parts", "path", "part"),
    [
        (
            {},
            "hourly.source",
            "needs one of window, session, query, deduplicate, top, join, lookup, processor or "
            "`target: {stored_as_scd_type: 2}`",
        ),
        ({"window": WINDOW, "query": PER}, "hourly.source", "has window and query"),
        ({"window": WINDOW | {"slide": "2 hours"}}, "hourly.window.slide", "more than size"),
        (
            {"window": WINDOW | {"size": "40 days", "slide": "1s"}},
            "hourly.window.slide",
            "10000 windows",
        ),
        ({"window": WINDOW | {"size": "0"}}, "hourly.window.size", "at least 1"),
        ({"window": WINDOW | {"size": "0 months"}}, "hourly.window.size", "at least 1"),
        ({"window": WINDOW | {"size": "101 years"}}, "hourly.window.size", "1200 months"),
        (
            {"window": WINDOW | {"size": "1 month", "slide": "1 day"}},
            "hourly.window.slide",
            "not for months",
        ),
        (
            {"window": WINDOW | {"size": "1 month", "week_starts": "monday"}},
            "hourly.window.week_starts",
            "not for",
        ),
        (
            {"window": WINDOW | {"size": "1 day", "week_starts": "monday"}},
            "hourly.window.week_starts",
            "every week",
        ),
        (
            {"window": WINDOW | {"size": "1 week", "week_starts": "mon"}},
            "hourly.window.week_starts",
            "monday",
        ),
        ({"window": WINDOW | {"time": "ats"}}, "hourly.window.time", "did you mean 'at'?"),
        (
            {"window": WINDOW | {"time": "day"}},
            "hourly.window.time",
            "is date: a window needs a timestamp",
        ),
        (
            {"window": WINDOW | {"group_by": ["carriers"]}},
            "hourly.window.group_by[0]",
            "did you mean 'carrier'?",
        ),
        (
            {"window": WINDOW | {"group_by": ["speed"]}},
            "hourly.window.group_by[0]",
            "compares exactly",
        ),
        ({"window": WINDOW | {"group_by": ["tags"]}}, "hourly.window.group_by[0]", "plain type"),
        (
            {"window": WINDOW | {"group_by": ["carrier", "Carrier"]}},
            "hourly.window.group_by",
            "twice",
        ),
        ({"window": WINDOW | {"measures": {}}}, "hourly.window.measures", "at least 1"),
        (
            {"window": WINDOW | {"measures": {"carrier": "count(*)"}}},
            "hourly.window.measures.carrier",
            "another column",
        ),
        (
            {"window": WINDOW | {"measures": {"window_end": "count(*)"}}},
            "hourly.window.measures.window_end",
            "another",
        ),
        (
            {"window": WINDOW | {"measures": {"n": "sum(dely)"}}},
            "hourly.window.measures.n",
            "did you mean 'delay'?",
        ),
        (
            {"window": WINDOW | {"measures": {"n": "sum(rand())"}}},
            "hourly.window.measures.n",
            "not determined by",
        ),
        (
            {"window": WINDOW | {"measures": {"n": "max(now())"}}},
            "hourly.window.measures.n",
            "not determined by",
        ),
        (
            {"window": WINDOW | {"measures": {"n": "first(delay)"}}},
            "hourly.window.measures.n",
            "order in which",
        ),
        (
            {"window": WINDOW | {"measures": {"n": "sum(delay) over ()"}}},
            "hourly.window.measures.n",
            "looks beyond",
        ),
        (
            {"window": WINDOW | {"measures": {"n": "(select 1)"}}},
            "hourly.window.measures.n",
            "looks beyond",
        ),
        (
            {"window": WINDOW | {"grup_by": ["carrier"]}},
            "hourly.window.grup_by",
            "did you mean 'group_by'?",
        ),
        ({"session": SESSION | {"gap": 0}}, "hourly.session.gap", "at least 1"),
        ({"session": SESSION | {"group_by": []}}, "hourly.session.group_by", "at least 1"),
        (
            {"session": SESSION | {"group_by": ["at"]}},
            "hourly.session.group_by",
            "is the time of a row",
        ),
        (
            {"session": SESSION | {"group_by": ["speed"]}},
            "hourly.session.group_by[0]",
            "compares exactly",
        ),
        (
            {"session": SESSION | {"time": "day"}},
            "hourly.session.time",
            "is date: a session needs a timestamp",
        ),
        (
            {"session": SESSION | {"measures": {"session_end": "count(*)"}}},
            "hourly.session.measures.session_end",
            "another",
        ),
        (
            {"session": SESSION | {"measures": {"n": "sum(dely)"}}},
            "hourly.session.measures.n",
            "did you mean 'delay'?",
        ),
        (
            {"deduplicate": FIRST | {"keys": ["speed"]}},
            "hourly.deduplicate.keys[0]",
            "compares exactly",
        ),
        (
            {"deduplicate": FIRST | {"sequence_by": ["ats"]}},
            "hourly.deduplicate.sequence_by[0]",
            "did you mean 'at'?",
        ),
        (
            {"deduplicate": FIRST | {"sequence_by": ["Carrier"]}},
            "hourly.deduplicate.sequence_by",
            "is a key",
        ),
        (
            {"deduplicate": FIRST | {"keep": "newest"}},
            "hourly.deduplicate.keep",
            "'first' or 'last'",
        ),
        (
            {"deduplicate": FIRST, "allowed_lateness": "2 days"},
            "hourly.allowed_lateness",
            "deduplicate places a row by `sequence_by`",
        ),
        ({"top": TOP | {"group_by": []}}, "hourly.top.group_by", "at least 1"),
        ({"top": TOP | {"group_by": ["carrier", "Carrier"]}}, "hourly.top.group_by", "twice"),
        (
            {"top": TOP | {"group_by": ["position"]}},
            "hourly.top.group_by",
            "is a column of the result",
        ),
        ({"top": TOP | {"rows": 0}}, "hourly.top.rows", "at least 1"),
        (
            {"top": TOP | {"order_by": ["delay down"]}},
            "hourly.top.order_by[0]",
            "followed by asc or desc",
        ),
        (
            {"top": TOP | {"order_by": ["abs(delay)"]}},
            "hourly.top.order_by[0]",
            "can't be a column",
        ),
        (
            {"top": TOP | {"order_by": ["delays"]}},
            "hourly.top.order_by[0]",
            "did you mean 'delay'?",
        ),
        ({"top": TOP | {"order_by": ["delay", "delay desc"]}}, "hourly.top.order_by", "twice"),
        ({"top": TOP | {"order_by": ["carrier"]}}, "hourly.top.order_by", "equal in a group"),
        ({"query": PER | {"keys": []}}, "hourly.query.keys", "at least 1"),
        ({"query": PER | {"keys": ["carrier", "carrier"]}}, "hourly.query.keys", "twice"),
        (
            {"query": PER | {"keys": ["carriers"]}},
            "hourly.query.keys[0]",
            "did you mean 'carrier'?",
        ),
        ({"query": PER | {"keys": ["speed"]}}, "hourly.query.keys[0]", "compares exactly"),
        ({"query": PER | {"sql": "drop table flights"}}, "hourly.query.sql", "write a SELECT"),
        ({"query": PER | {"sql": "select 1; select 2"}}, "hourly.query.sql", "one expression"),
        (
            {"query": PER | {"sql": "select uuid() from flights"}},
            "hourly.query.sql",
            "not determined by",
        ),
        (
            {"query": PER | {"sql": "select collect_list(delay) from flights"}},
            "hourly.query.sql",
            "order in which",
        ),
        (
            {"query": PER | {"sql": "select hll_sketch_agg(delay) from flights"}},
            "hourly.query.sql",
            "order in which",
        ),
        *(
            ({"query": PER | {"sql": sql}}, "hourly.query.sql", part)
            for sql, part in [
                (
                    "select carrier, smu(delay) as d from flights group by carrier",
                    "no function 'smu'; did you mean 'sum'",
                ),
                (
                    "select carrier, sum(dely) as d from flights group by carrier",
                    "no column 'dely'; did you mean 'delay'",
                ),
                ("select f.carrier from flights f where delya > 1", "no column 'delya'"),
                (
                    "select carrier from flihgts, flights",
                    "reads flihgts: the source is flights; did you mean",
                ),
                ("select carrier, 1 as n from (select * from lake.flights)", "reads lake.flights"),
                ("select count(*) as n from flights", "does not return key carrier"),
                ("select carrier from flights limit 10", "has a LIMIT"),
                ("select carrier from (select carrier from flights limit 1) t", "has a LIMIT"),
                ("select carrier from flights order by carrier", "has ORDER BY"),
            ]
        ),
        ({"window": WINDOW, "rules": {"x": "true"}}, "hourly.rules", "unknown key"),
        (
            {"window": WINDOW, "target": {"keys": ["carrier"]}},
            "hourly.target.keys",
            "is of a history, `target: {stored_as_scd_type: 2}`: what names the rows here follows from `window`",
        ),
        (
            {"window": WINDOW, "target": {"partition_by": ["n"]}},
            "hourly.target.partition_by[0]",
            "is no key",
        ),
        (
            {"window": WINDOW, "columns": {"carrier": "double"}},
            "hourly.columns.carrier",
            "compares exactly",
        ),
        ({"window": WINDOW, "allowed_lateness": "2 days"}, "hourly.allowed_lateness", "has keys"),
        (
            {"query": PER, "allowed_lateness": "2 days"},
            "hourly.allowed_lateness",
            "query reads all rows of its keys",
        ),
        (
            {"top": TOP, "allowed_lateness": "2 days"},
            "hourly.allowed_lateness",
            "top places a row by `order_by`",
        ),
        ({"session": SESSION, "allowed_lateness": "2 days"}, "hourly.allowed_lateness", "has keys"),
        ({"window": WINDOW, "allowed_lateness": "0"}, "hourly.allowed_lateness", "at least 1"),
        *(
            (
                {
                    "processor": {
                        name: one for name, one in (FOLD | parts).items() if one is not None
                    }
                },
                path,
                part,
            )
            for parts, path, part in (
                (
                    {"gap": None},
                    "hourly.processor.gap",
                    "no row appears without input, so there is no timer",
                ),
                ({"class": "Basket"}, "hourly.processor.class", "a class of jobs/processors/"),
                ({"group_by": ["speed"]}, "hourly.processor.group_by[0]", "compares exactly"),
                ({"order_by": ["delay"]}, "hourly.processor.order_by[0]", "needs a timestamp"),
                (
                    {"order_by": ["at", "dely"]},
                    "hourly.processor.order_by[1]",
                    "did you mean 'delay'?",
                ),
                ({"order_by": ["at", "carrier"]}, "hourly.processor.order_by", "is in `group_by`"),
                (
                    {"columns": {"Position": "int"}},
                    "hourly.processor.columns.Position",
                    "another column of the result",
                ),
                ({"columns": {"n": "float"}}, "hourly.processor.columns.n", "declare double"),
                (
                    {"state": {"n": "map<string,int>"}},
                    "hourly.processor.state.n",
                    "give its parts",
                ),
                (
                    {"state": {"n": "int not null"}},
                    "hourly.processor.state.n",
                    "use an expectation",
                ),
            )
        ),
    ],
)
def test_what_cant_work_is_named_with_its_line(
    tmp_path: Path, parts: dict[str, Any], path: str, part: str
) -> None:
    (problem,) = refused(tmp_path, document(hourly={"source": {"table": "flights"}, **parts}))
    place, _, message = problem.partition(f": flows.{path}: ")
    line, column = map(int, place.split(":"))
    assert part in message and line > 20 and column >= 5


@pytest.mark.parametrize(
    ("flows", "path", "part"),
    [
        ({"a": derived("a")}, "a.source.table", "reads its own table"),
        (
            {"a": derived("c"), "b": derived("a"), "c": derived("b")},
            "a.source.table",
            "a → b → c → a",
        ),
        (
            {"a": derived(target={"table": "flights"}, window=WINDOW)},
            "a.target.table",
            "one writer each",
        ),
    ],
)
def test_the_graph_is_refused_with_file_and_line(
    tmp_path: Path, flows: dict[str, Any], path: str, part: str
) -> None:
    (problem,) = refused(tmp_path, document(**flows))
    assert f": flows.{path}: " in problem and part in problem


def test_columns_that_only_a_run_shows_are_left_to_it(tmp_path: Path) -> None:
    """A transform may make any column, and so may a derived flow whose columns are inferred."""
    made = {**FLIGHTS, "transform": "flights.tidy"}
    content = {
        **document(),
        "flows": {"flights": made, "a": derived(window=WINDOW | {"time": "made"})},
    }
    content["flows"]["b"] = derived("a", query={"keys": ["n"], "sql": "select n from a group by n"})
    assert load(tmp_path, content).graph.order == ["flights", "a", "b"]


def test_flows_run_after_those_they_read(tmp_path: Path) -> None:
    flows = {"a": derived("b"), "b": derived("flights"), "z": derived("flights")}
    flows["a"] = derived(
        "b", query={"keys": ["carrier"], "sql": "select carrier, sum(n) n from b group by carrier"}
    )
    spec = load(tmp_path, {**document(), "flows": {**flows, "flights": FLIGHTS}})
    assert spec.graph.order == ["flights", "b", "a", "z"]


@given(st.data())
def test_any_graph_without_a_cycle_has_an_order(data: st.DataObject) -> None:
    names = [f"f{i}" for i in range(data.draw(st.integers(1, 8)))]
    rank = data.draw(st.permutations(names))
    reads = {
        name: tuple(data.draw(st.lists(st.sampled_from(before), unique=True, max_size=3)))
        if before
        else ()
        for name in names
        for before in [rank[: rank.index(name)]]
    }
    graph = FlowGraph({name: name for name in names}, reads)
    assert not list(graph.problems())
    found = graph.order
    assert sorted(found) == names
    assert all(found.index(need) < found.index(name) for name in names for need in reads[name])
    free = [name for name in names if not any(reads.values())]
    assert all(found.index(one) < found.index(two) for one, two in pairwise(free))


@pytest.mark.parametrize(
    ("flow", "valid"),
    [
        (derived(), True),
        (derived(query=PER), True),
        ({"source": {"table": "flights"}, "window": WINDOW | {"size": 3600}}, True),
        ({"source": {"table": "flights"}, "window": {**WINDOW, "extra": 1}}, False),
        (
            {
                "source": {"table": "flights"},
                "target": HISTORY | {"track_history": {"except": ["delay"]}},
            },
            True,
        ),
        (
            {
                "source": {"table": "flights"},
                "target": HISTORY | {"track_history": {"but": ["delay"]}},
            },
            False,
        ),
        ({"source": {"table": "flights"}, "target": HISTORY | {"stored_as_scd_type": 1}}, False),
        ({"source": {"table": "flights"}, "rules": {}}, False),
    ],
)
def test_editors_know_derived_flows(flow: dict[str, Any], valid: bool) -> None:
    assert Draft202012Validator(schema()).is_valid(document(f=flow)) is valid


@pytest.mark.parametrize(
    "sql",
    [
        "select carrier, max(delay) as worst from flights f where f.at > timestamp'2020-01-01' group by carrier",
        "select carrier, n from (select carrier, count(*) n from flights group by 1) t(carrier, n) where n > 1",
        "select *, row_number() over w as r from flights window w as (partition by carrier order by at, flight_id)",
        "select carrier, sum(delay) filter (where delay is distinct from 3) as d from flights group by carrier",
        "select carrier, extract(year from at) as y, trim(both 'x' from carrier) as t, _origin from flights",
        "select carrier, transform(tags, (x, i) -> concat(x, i)) as t, limit from (select *, 1 as limit from flights)",
        "select carrier, cast(delay as string) as s, delay::double d, case when at is null then 1 end c from flights",
        "select a.carrier, s.offset from flights a left join (select carrier, 1 as offset from flights) s "
        "on a.carrier = s.carrier and s.offset between 1 and 2",
        "(select carrier from flights) union all (select carrier from flights where carrier rlike '^A')",
    ],
)
def test_a_query_that_only_spark_can_judge_is_left_to_it(tmp_path: Path, sql: str) -> None:
    assert load(tmp_path, document(hourly=derived(query=PER | {"sql": sql}))).flows["hourly"]


def test_windows_of_months_and_weeks_are_read_back_as_they_were(tmp_path: Path) -> None:
    parts = {
        "m": {"size": "1 Month"},
        "y": {"size": "1 year"},
        "w": {"size": "2 weeks", "week_starts": "sunday"},
        "d": {"size": "3 weeks", "slide": "1 week"},
    }
    spec = load(
        tmp_path, document(**{name: derived(window=WINDOW | part) for name, part in parts.items()})
    )
    request = Request(spec=spec, flow="m", step="drain", run_id="r", root="/p")
    for found in (spec.flows, Request.decode(request.encode()).spec.flows):
        months, year, weeks, hops = (found[name].window for name in parts)
        assert (hops.step, hops.origin) == (7 * 86400, 4 * 86400), "from Monday, 1970-01-05"
        assert (months.size, months.months, months.seconds) == ("1 months", 1, 31 * 86400)
        assert (year.months, weeks.months, weeks.step, weeks.origin) == (
            12,
            None,
            14 * 86400,
            3 * 86400,
        )
