"""`join` and `lookup` in a pipeline file: what names its rows, and what is refused, with file and
line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from draindown.base.errors import TerminalError
from draindown.config import loader
from draindown.config.derived import DerivedFlow
from draindown.config.models import PipelineSpec
from draindown.config.pairing import Pairing, side_problems
from draindown.runs.request import Request

LEFT = {
    "source": {"files": "x/*", "format": "json"},
    "columns": {
        "id": "bigint not null",
        "k": "string",
        "x": "double",
        "at": "timestamp not null",
        "n": "int",
    },
    "target": {"keys": ["id"], "sequence_by": ["at"]},
}
RIGHT = {
    "source": {"files": "y/*", "format": "json"},
    "columns": {
        "rid": "bigint not null",
        "kk": "string not null",
        "seen": "timestamp",
        "at": "timestamp not null",
        "m": "int",
        "x": "double",
    },
    "target": {"keys": ["rid"], "sequence_by": ["at"]},
}
APPEND = {"target": {}}
COLUMNS = {"rid": "other", "seen": "seen", "m": "m"}
JOIN = {
    "left": "l",
    "right": "r",
    "on": ["k"],
    "times": ["at", "seen"],
    "within": "30 minutes",
    "columns": COLUMNS,
}
TABLES: list[Any] = ["r", "l"]
TABLES[0] = {"table": "r", "keys": {"k": "kk"}}


def document(
    parts: dict[str, Any], left: dict[str, Any] = LEFT, right: dict[str, Any] = RIGHT
) -> dict[str, Any]:
    flows = {"d": {"source": {"tables": TABLES}, **parts}, "l": left, "r": right}
    return {"pipeline": "p", "lake": "lake", "flows": flows}


def load(home: Path, content: dict[str, Any]) -> PipelineSpec:
    path = home / f"{content['pipeline']}.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return loader.load(path, {})


def joined(home: Path, **flows: Any) -> DerivedFlow:
    found = load(home, document({"join": JOIN}, **flows)).declared("d")
    assert isinstance(found, DerivedFlow)
    return found


def refused(home: Path, content: dict[str, Any]) -> list[str]:
    with pytest.raises(TerminalError) as error:
        load(home, content)
    assert error.value.code == "invalid-pipeline"
    return [line.partition(".yaml:")[2] for line in error.value.found.splitlines()]


def test_a_pair_is_named_by_its_scope_and_both_rows(tmp_path: Path) -> None:
    found = joined(tmp_path)
    assert found.target.row_keys == ["k", "time_bucket", "id", "other"] and found.kind == "join"
    assert found.source.sought == {"k": ["kk", "k"], "time_bucket": ["seen", "at"]}
    ones = {"left": LEFT | APPEND, "right": RIGHT | APPEND}
    assert joined(tmp_path, left=ones["left"]).target.row_keys == [
        "k",
        "time_bucket",
        "left_origin",
        "other",
    ]
    assert joined(tmp_path, **ones).target.row_keys == [
        "k",
        "time_bucket",
        "left_origin",
        "right_origin",
    ]


def test_a_right_row_that_its_key_names_is_named_by_the_key(tmp_path: Path) -> None:
    one = RIGHT | {"target": {"keys": ["kk"], "sequence_by": ["at"]}}
    part = {name: JOIN[name] for name in ("left", "right", "on")} | {"columns": ["m"]}
    found = load(tmp_path, document({"join": part}, right=one)).declared("d")
    assert found.target.row_keys == ["k", "id"]


def test_other_keys_of_a_table_are_another_derivation(tmp_path: Path) -> None:
    assert (
        joined(tmp_path).source.derivation != joined(tmp_path, left=LEFT | APPEND).source.derivation
    )


def test_a_request_carries_the_keys(tmp_path: Path) -> None:
    request = Request(
        spec=load(tmp_path, document({"join": JOIN})), flow="d", step="drain", run_id="r", root="/p"
    )
    assert Request.decode(request.encode()).declared.target.row_keys == [
        "k",
        "time_bucket",
        "id",
        "other",
    ]


def test_the_keys_of_a_join_of_another_pipeline_are_known(tmp_path: Path) -> None:
    """Of flows behind it, too, whichever pipeline and place in the file they are in."""
    pipelines = tmp_path / "dags" / "pipelines"
    pipelines.mkdir(parents=True)
    first = {"pipeline": "a", "lake": "lake", "flows": {"l": LEFT}}
    source = {"tables": [TABLES[0], {"table": "l", "pipeline": "a"}]}
    second = {
        "pipeline": "b",
        "lake": "lake",
        "flows": {"d": {"source": source, "join": JOIN}, "r": RIGHT},
    }
    both = {"left": "d", "right": "r", "on": ["k"], "columns": {"rid": "again"}}
    tables = [{"table": "d", "pipeline": "b"}, {**TABLES[0], "pipeline": "b"}]
    third = {
        "pipeline": "c",
        "lake": "lake",
        "flows": {"e": {"source": {"tables": tables}, "join": both}},
    }
    for content in (third, first, second):
        (pipelines / f"{content['pipeline']}.yaml").write_text(yaml.safe_dump(content))
    found = {
        one.pipeline: one for one in loader.load_all(pipelines, {}) if isinstance(one, PipelineSpec)
    }
    assert found["b"].declared("d").target.row_keys == ["k", "time_bucket", "id", "other"]
    assert found["c"].declared("e").target.row_keys == ["k", "time_bucket", "id", "other", "again"]
    request = Request(spec=found["c"], flow="e", step="drain", run_id="r", root="/p")
    again = Request.decode(request.encode())
    assert again.declared.target.row_keys == found["c"].declared("e").target.row_keys
    assert again.declared.source.derivation == found["c"].declared("e").source.derivation


@pytest.mark.parametrize(
    ("change", "path", "part"),
    [
        ({"how": "right_outer"}, "join.how", "exchange `left` and `right`"),
        ({"how": "full"}, "join.how", "no left row in whose scope"),
        ({"how": "left_semi"}, "join.how", "are not NULL"),
        ({"how": "anti"}, "join.how", "are NULL"),
        ({"how": "cross"}, "join.how", "'inner' or 'left_outer'"),
        ({"left": "r"}, "join.right", "a join of a table with itself"),
        ({"left": "ll"}, "join.left", "'ll' is no table of `source`; did you mean 'l'?"),
        ({"on": []}, "join.on", "at least 1"),
        ({"on": ["k", "K"]}, "join.on", "twice"),
        ({"times": None}, "join.within", "needs `times`"),
        ({"within": None}, "join.times", "needs within or between"),
        ({"between": [0, 1]}, "join.times", "keep one"),
        ({"within": "0"}, "join.within", "at least 1"),
        ({"within": "5000 weeks"}, "join.times", None),
        ({"within": "6000 weeks"}, "join.times", "a century"),
        (
            {"within": None, "between": ["1 minute", "-1 minute"]},
            "join.between",
            "1 minute and -1 minute: the first",
        ),
        ({"within": None, "between": ["- minute", 0]}, "join.between[0]", "must be a duration"),
        ({"within": None, "between": ["-1 minute", 0]}, "join.between", None),
        ({"within": None, "between": [-60, "1 minute"]}, "join.between", None),
        (
            {"times": ["att", "seen"]},
            "join.times[0]",
            "'att' is no column of table l; did you mean 'at'?",
        ),
        ({"times": ["at", "m"]}, "join.times[1]", "'m' is int: a join needs a timestamp"),
        (
            {"columns": ["m", "rid", "mm"]},
            "join.columns[2]",
            "'mm' is no column of table r; did you mean 'm'?",
        ),
        ({"columns": COLUMNS | {"sen": "s"}}, "join.columns.sen", "did you mean 'seen'?"),
        ({"columns": ["m", "rid", "m"]}, "join.columns", "twice"),
        ({"columns": {"m": "a", "rid": "A"}}, "join.columns", "calls two columns"),
        ({"columns": ["m"]}, "join.columns", "lacks rid: keys of table r"),
        ({"columns": ["rid", "at"]}, "join.columns", "'at' is a column of table l and of table r"),
        ({"columns": {"rid": "time_bucket"}}, "join.columns", "of the result and of table r"),
    ],
)
def test_what_cant_work_is_named_with_its_line(
    tmp_path: Path, change: dict[str, Any], path: str, part: str | None
) -> None:
    content = document(
        {"join": {name: one for name, one in (JOIN | change).items() if one is not None}}
    )
    if part is None:
        load(tmp_path, content)
        return
    (problem,) = refused(tmp_path, content)
    place, _, message = problem.partition(f": flows.d.{path}: ")
    line, column = map(int, place.split(":"))
    assert part in message and line > 4 and column >= 5, problem


@pytest.mark.parametrize(
    ("parts", "path", "part"),
    [
        (
            {"join": {k: v for k, v in JOIN.items() if k != "columns"}},
            "join.columns",
            "'at' is a column of table l and",
        ),
        (
            {"join": JOIN, "target": {"partition_by": ["id"]}},
            "target.partition_by[0]",
            "keys are k, time_bucket",
        ),
        ({"join": JOIN, "columns": {"k": "double"}}, "columns.k", "compares exactly"),
        (
            {
                "join": JOIN,
                "sinks": {
                    "s": {"postgres": {"url": "${secret:X}", "table": "t", "keys": ["id"]}}
                },
            },
            "sinks.s.postgres.keys",
            "they are k, time_bucket, id, other",
        ),
    ],
)
def test_what_the_keys_forbid_is_named(
    tmp_path: Path, parts: dict[str, Any], path: str, part: str
) -> None:
    problems = refused(tmp_path, document(parts))
    assert any(f": flows.d.{path}: " in one and part in one for one in problems), problems


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("kind", ["join", "lookup"])
def test_a_key_may_not_have_the_name_of_another_column_of_the_left_table(
    tmp_path: Path, kind: str, known: bool
) -> None:
    """`id` would be the order's in the result, and the customer's where rows are sought."""
    columns = {"id": "bigint not null", "customer_id": "bigint", "at": "timestamp not null"}
    left = LEFT | {"columns": columns}
    right = BY_KEY | {"columns": {"cid": "bigint not null", "at": "timestamp not null", "m": "int"}}
    right["target"] = {"keys": ["cid"], "sequence_by": ["at"]}
    tables: list[Any] = [
        {"table": "l", "keys": {"id": "customer_id"}},
        {"table": "r", "keys": {"id": "cid"}},
    ]
    part: dict[str, Any] = {"on": ["id"], "columns": ["m"]}
    part |= {"left": "l", "right": "r"} if kind == "join" else {"table": "r"}
    content = document({kind: part}, left=left, right=right)
    content["flows"]["d"]["source"] = {"tables": tables}
    if known:
        (problem,) = refused(tmp_path, content)
        assert (
            f": flows.d.{kind}.on[0]: 'id' is customer_id of table l, which has another column"
            in problem
        )
        assert "call it customer_id here" in problem
    else:  # a drain shows the columns
        left["transform"] = "x.y"
        flow = load(tmp_path, content).declared("d")
        assert isinstance(flow, DerivedFlow) and isinstance(flow.derivation, Pairing)
        types = {"l": dict.fromkeys(columns, "bigint"), "r": {"cid": "bigint", "m": "int"}}
        assert [place for place, _ in side_problems(flow.derivation, types)] == [("on", "0")]
    tables[:] = ["l", {"table": "r", "keys": {"customer_id": "cid"}}]
    content["flows"]["d"][kind] = part | {"on": ["customer_id"]}
    left.pop("transform", None)
    load(tmp_path, content)


def test_a_key_has_one_type(tmp_path: Path) -> None:
    other = RIGHT | {"columns": RIGHT["columns"] | {"kk": "bigint not null"}}  # type: ignore[operator]
    (problem,) = refused(tmp_path, document({"join": JOIN}, right=other))
    assert (
        "flows.d.join.on[0]: k of l is string, and kk of r is bigint: a key has one type" in problem
    )


def test_a_float_is_no_key(tmp_path: Path) -> None:
    content = document({"join": JOIN | {"on": ["x"]}})
    content["flows"]["d"]["source"] = {"tables": ["l", "r"]}
    problems = refused(tmp_path, content)
    assert any("flows.d.join.on[0]: 'x' is double" in one for one in problems)


LOOKUP = {"table": "r", "on": ["k"], "columns": ["m"], "as_of": "latest"}
BY_KEY = RIGHT | {"target": {"keys": ["kk"], "sequence_by": ["at"]}}


def test_a_lookup_has_the_keys_of_its_rows(tmp_path: Path) -> None:
    found = load(tmp_path, document({"lookup": LOOKUP}, right=BY_KEY)).declared("d")
    assert (
        isinstance(found, DerivedFlow)
        and found.kind == "lookup"
        and found.target.row_keys == ["id"]
    )
    assert (
        found.source.sought == {"id": [None, "id"]}
        and found.lookup is not None
        and found.lookup.found == "r_found"
    )
    found = load(tmp_path, document({"lookup": LOOKUP}, left=LEFT | APPEND, right=BY_KEY)).declared(
        "d"
    )
    assert found.target.row_keys == ["left_origin"]


PAST = RIGHT | {"target": {"keys": ["kk"], "sequence_by": ["at"], "stored_as_scd_type": 2}}
BY_TWO = RIGHT | {"target": {"keys": ["kk"], "sequence_by": ["rid", "at"], "stored_as_scd_type": 2}}


def derived(sequence_by: list[str]) -> dict[str, Any]:
    target = {"keys": ["kk"], "sequence_by": sequence_by, "stored_as_scd_type": 2}
    return {"source": {"table": "events"}, "target": target}


def of_history(change: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
    content = document({"lookup": LOOKUP | {"as_of": "at"} | change}, right=right)
    content["flows"]["events"] = RIGHT | APPEND
    return content


@pytest.mark.parametrize("right", [PAST, derived(["at"])], ids=["landed", "derived"])
def test_a_history_is_looked_up_at_a_time(tmp_path: Path, right: dict[str, Any]) -> None:
    found = load(
        tmp_path, of_history({"columns": {"m": "mm", "at": "since", "x": "y"}}, right)
    ).declared("d")
    assert isinstance(found, DerivedFlow) and found.target.row_keys == ["id"]
    assert found.lookup is not None and (found.lookup.time, found.lookup.result_time) == (
        "at",
        "at",
    )
    assert "the rows with its k whose at it says something else of" in found.lookup.touches
    assert "the row of r valid at its at that has its k" in found.lookup.in_words
    renamed = of_history({"on": ["k", "then"], "columns": ["m"]}, right)
    renamed["flows"]["d"]["source"] = {
        "tables": [{"table": "r", "keys": {"k": "kk", "then": "seen"}}, LEFT_AT]
    }
    found = load(tmp_path, renamed).declared("d")
    assert (
        isinstance(found, DerivedFlow)
        and found.lookup is not None
        and found.lookup.result_time == "then"
    )


LEFT_AT = {"table": "l", "keys": {"then": "at"}}


@pytest.mark.parametrize("how", ["landed", "derived"])
@pytest.mark.parametrize(
    ("change", "sequence", "path", "part"),
    [
        ({}, ["at"], "", ""),
        ({}, ["at", "rid"], "", ""),
        ({"as_of": "n"}, ["rid"], "", ""),
        ({"as_of": "id"}, ["m", "at"], "", ""),
        (
            {"as_of": "n"},
            ["at"],
            "as_of",
            "n of l is int, and r is valid from a timestamp: the two need one type",
        ),
        (
            {},
            ["rid", "at"],
            "as_of",
            "from a bigint, the first column of its sequence: the two need one type",
        ),
        ({"as_of": "k"}, ["rid"], "as_of", "k of l is string, and r is valid from a bigint"),
        ({"as_of": "att"}, ["at"], "as_of", "'att' is no column of table l; did you mean 'at'?"),
        ({"as_of": "_at"}, ["at"], "as_of", "reserved for draindown"),
        (
            {"as_of": None},
            ["at"],
            "as_of",
            "r is a history, which has several rows of a key: name the column of l",
        ),
        ({"as_of": "arrival"}, ["at"], "as_of", "depends on when runs happened"),
        ({"columns": None}, ["at"], "columns", "'x' is a column of table l and of table r"),
    ],
)
def test_what_a_history_cant_be_asked_is_named(
    tmp_path: Path, how: str, change: dict[str, Any], sequence: list[str], path: str, part: str
) -> None:
    right = (
        derived(sequence) if how == "derived" else RIGHT | {"target": derived(sequence)["target"]}
    )
    right = (
        right | {"columns": RIGHT["columns"] | {"m": "int not null"}} if how == "landed" else right
    )
    content = of_history({}, right)
    content["flows"]["events"]["columns"] = RIGHT["columns"] | {"n": "int"}
    if how == "landed":
        content["flows"]["r"]["columns"] |= {"n": "int"}
    content["flows"]["d"]["lookup"] = {
        k: v for k, v in ({**LOOKUP, "as_of": "at"} | change).items() if v is not None
    }
    if not path:
        load(tmp_path, content)
        return
    assert any(
        f": flows.d.lookup.{path}: " in one and part in one for one in refused(tmp_path, content)
    ), part


def test_a_table_that_keeps_no_history_is_refused_with_the_way_to_one(tmp_path: Path) -> None:
    (problem,) = refused(tmp_path, of_history({}, RIGHT | APPEND))
    assert (
        "lookup.as_of: r is no history, in which a row is valid from a time on: derive one from it"
        in problem
    )
    assert "`as_of: latest` takes" in problem


def test_a_history_that_is_looked_up_beside_another_is_one(tmp_path: Path) -> None:
    """Its rows are those of the left history, so that none overlap either."""
    content = of_history({"on": ["k"], "columns": {"m": "mm"}, "as_of": "at"}, PAST)
    content["flows"]["l"] = LEFT | {
        "target": {"keys": ["k"], "sequence_by": ["n"], "stored_as_scd_type": 2}
    }
    content["flows"]["l"]["columns"] = LEFT["columns"] | {
        "k": "string not null",
        "n": "int not null",
    }
    again = {"table": "d", "on": ["k"], "columns": {"mm": "again"}, "as_of": "n"}
    content["flows"]["e"] = {"source": {"tables": ["m", "d"]}, "lookup": again}
    content["flows"]["m"] = LEFT
    assert load(tmp_path, content).declared("d").target.row_keys == ["k", "__START_AT"]
    content["flows"]["e"]["lookup"]["as_of"] = "k"
    load(tmp_path, content)  # what a derived table has, only a run shows


def test_a_join_has_no_time_at_which_it_asks(tmp_path: Path) -> None:
    (problem,) = refused(
        tmp_path, of_history({}, PAST) | {"flows": join_of_history({"as_of": "at"})}
    )
    assert "join.as_of: not supported: what a history says of a time is looked up" in problem
    (problem,) = refused(tmp_path, of_history({}, PAST) | {"flows": join_of_history({})})
    assert (
        "join.columns: table r is a history, whose rows are named by their start: leave it out"
        in problem
    )
    assert "`lookup` with `as_of: <column of l>` takes the one" in problem


def join_of_history(change: dict[str, Any]) -> dict[str, Any]:
    flows = of_history({}, PAST)["flows"]
    part = {"left": "l", "right": "r", "on": ["k"], "columns": ["m"], **change}
    return {**flows, "d": {"source": {"tables": TABLES}, "join": part}}


@pytest.mark.parametrize(
    ("change", "right", "path", "part"),
    [
        ({"as_of": "arrival"}, BY_KEY, "lookup.as_of", "depends on when runs happened"),
        ({"as_of": "arrival"}, BY_KEY, "lookup.as_of", "look up a history of the table"),
        (
            {"as_of": "at"},
            BY_KEY,
            "lookup.as_of",
            "r is no history: it keeps one row per kk, and",
        ),
        ({"table": "s"}, BY_KEY, "lookup.table", "'s' is no table of `source`"),
        ({}, RIGHT, "lookup.on", "lacks rid: rows of r are named by rid"),
        ({}, RIGHT | APPEND, "lookup.table", "`deduplicate` them before"),
        ({"columns": ["mm"]}, BY_KEY, "lookup.columns[0]", "did you mean 'm'?"),
        ({"columns": ["x"]}, BY_KEY, "lookup.columns", "'x' is a column of table l and of table r"),
        ({"columns": {"m": "r_found"}}, BY_KEY, "lookup.columns", "of the result and of table r"),
    ],
)
def test_what_cant_be_looked_up_is_named(
    tmp_path: Path, change: dict[str, Any], right: dict[str, Any], path: str, part: str
) -> None:
    (problem,) = refused(tmp_path, document({"lookup": LOOKUP | change}, right=right))
    assert f": flows.d.{path}: " in problem and part in problem, problem


LOOKUP = {"table": "r", "on": ["k"], "columns": ["m"]}


@pytest.mark.parametrize(
    ("parts", "left", "right", "wrong"),
    [
        ({"join": JOIN}, APPEND, APPEND, []),
        ({"join": JOIN}, {}, APPEND, ["table l has keys"]),
        ({"join": JOIN}, {}, {}, ["table r has keys", "table l has keys"]),
        (
            {"join": {name: JOIN[name] for name in ("left", "right", "on", "columns")}},
            APPEND,
            APPEND,
            ["join has no `times`, by which a row of either table could be late"],
        ),
        (
            {"lookup": LOOKUP},
            APPEND,
            {"target": {"keys": ["kk"], "sequence_by": ["at"]}},
            ["lookup follows both tables, whenever their rows come"],
        ),
    ],
)
def test_rows_of_both_sides_are_late_where_both_tables_append_and_have_times(
    tmp_path: Path,
    parts: dict[str, Any],
    left: dict[str, Any],
    right: dict[str, Any],
    wrong: list[str],
) -> None:
    content = document({**parts, "allowed_lateness": "2 days"}, LEFT | left, RIGHT | right)
    if not wrong:
        found = load(tmp_path, content).declared("d")
        assert isinstance(found, DerivedFlow)
        assert [found.derivation.timed_by(one.table) for one in found.source.read] == ["seen", "at"]
        without = load(tmp_path, document(parts, LEFT | left, RIGHT | right)).declared("d")
        assert without.source.derivation != found.source.derivation, "another query"
        return
    problems = refused(tmp_path, content)
    assert len(problems) == len(wrong) and all(": flows.d.allowed_lateness: " in one for one in problems)
    assert all(part in one for part, one in zip(wrong, problems, strict=True)), problems
