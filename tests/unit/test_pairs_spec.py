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
INTERVAL = {"left": "at", "right": "seen", "between": ["0 minutes", "30 minutes"]}
JOIN: dict[str, Any] = {
    "table": "r",
    "on": {"k": "kk"},
    "interval": INTERVAL,
    "columns": COLUMNS,
}
BY_KEYS = {name: JOIN[name] for name in ("table", "on", "columns")}


def document(
    parts: dict[str, Any], left: dict[str, Any] = LEFT, right: dict[str, Any] = RIGHT
) -> dict[str, Any]:
    flows = {"d": {"source": {"table": "l"}, **parts}, "l": left, "r": right}
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
    assert found.source.sought == {"k": ["k", "kk"], "time_bucket": ["at", "seen"]}
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
    found = load(tmp_path, document({"join": BY_KEYS | {"columns": ["m"]}}, right=one)).declared(
        "d"
    )
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
    second = {
        "pipeline": "b",
        "lake": "lake",
        "flows": {"d": {"source": {"table": "l"}, "join": JOIN}, "r": RIGHT},
    }
    both = {"table": "r", "on": {"k": "kk"}, "columns": {"rid": "again"}}
    third = {
        "pipeline": "c",
        "lake": "lake",
        "flows": {"e": {"source": {"table": "d"}, "join": both}},
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
        ({"how": "right_outer"}, "join.how", "exchange the two tables"),
        ({"how": "full"}, "join.how", "no left row in whose scope"),
        ({"how": "left_semi"}, "join.how", "are not NULL"),
        ({"how": "anti"}, "join.how", "are NULL"),
        ({"how": "cross"}, "join.how", "'inner' or 'left_outer'"),
        ({"table": "l"}, "join.table", "a join of a table with itself"),
        ({"table": None}, "join.table", "is required"),
        ({"on": None}, "join.on", "is required"),
        ({"on": []}, "join.on", "at least 1"),
        ({"on": {}}, "join.on", "at least 1"),
        ({"on": "k"}, "join.on", "a list, such as [name], or keys and values"),
        ({"on": ["k", "K"]}, "join.on", "twice"),
        ({"on": {"k": "kk", "n": "kk"}}, "join.on", "matches 'kk' of table r twice"),
        ({"on": {"kx": "kk"}}, "join.on.kx", "'kx' is no column of table l"),
        ({"on": {"k": "kx"}}, "join.on.k", "'kx' is no column of table r"),
        *(
            ({"interval": {k: v for k, v in INTERVAL.items() if k != name}}, place, "is required")
            for name, place in ((name, f"join.interval.{name}") for name in INTERVAL)
        ),
        ({"interval": INTERVAL | {"within": 1}}, "join.interval.within", "unknown key"),
        ({"interval": INTERVAL | {"between": ["0", "5000 weeks"]}}, "join.interval", None),
        ({"interval": INTERVAL | {"between": ["-5000 weeks", "0"]}}, "join.interval", None),
        (
            {"interval": INTERVAL | {"between": ["0", "6000 weeks"]}},
            "join.interval.between",
            "a century",
        ),
        (
            {"interval": INTERVAL | {"between": ["1 minute", "-1 minute"]}},
            "join.interval.between",
            "1 minute and -1 minute: the first",
        ),
        (
            {"interval": INTERVAL | {"between": ["- minute", 0]}},
            "join.interval.between[0]",
            "must be a duration",
        ),
        ({"interval": INTERVAL | {"between": ["1 minute"]}}, "join.interval.between", "at least 2"),
        ({"interval": INTERVAL | {"between": ["-1 minute", 0]}}, "join.interval.between", None),
        ({"interval": INTERVAL | {"between": [-60, "1 minute"]}}, "join.interval.between", None),
        (
            {"interval": INTERVAL | {"left": "att"}},
            "join.interval.left",
            "'att' is no column of table l; did you mean 'at'?",
        ),
        (
            {"interval": INTERVAL | {"right": "m"}},
            "join.interval.right",
            "'m' is int: a join needs a timestamp",
        ),
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
                    "s": {"postgres": {"url": "${secret:X}", "table": "t"}, "columns": ["m"]}
                },
            },
            "sinks.s.columns",
            "lacks k, time_bucket, id, other: the sink's keys are those of the table",
        ),
    ],
)
def test_what_the_keys_forbid_is_named(
    tmp_path: Path, parts: dict[str, Any], path: str, part: str
) -> None:
    problems = refused(tmp_path, document(parts))
    assert any(f": flows.d.{path}: " in one and part in one for one in problems), problems


def test_a_key_has_one_type(tmp_path: Path) -> None:
    other = RIGHT | {"columns": RIGHT["columns"] | {"kk": "bigint not null"}}  # type: ignore[operator]
    (problem,) = refused(tmp_path, document({"join": JOIN}, right=other))
    assert (
        "flows.d.join.on.k: k of l is string, and kk of r is bigint: a key has one type" in problem
    )


def test_a_float_is_no_key(tmp_path: Path) -> None:
    content = document({"join": JOIN | {"on": ["x"]}})
    problems = refused(tmp_path, content)
    assert any("flows.d.join.on[0]: 'x' is double" in one for one in problems)


LOOKUP = {"table": "r", "on": {"k": "kk"}, "columns": ["m"]}
BY_KEY = RIGHT | {"target": {"keys": ["kk"], "sequence_by": ["at"]}}


def test_a_lookup_has_the_keys_of_its_rows(tmp_path: Path) -> None:
    found = load(tmp_path, document({"lookup": LOOKUP}, right=BY_KEY)).declared("d")
    assert (
        isinstance(found, DerivedFlow)
        and found.kind == "lookup"
        and found.target.row_keys == ["id"]
    )
    assert (
        found.source.sought == {"id": ["id", None]}
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
    assert found.lookup is not None and found.lookup.time == "at"
    assert "the rows with its k whose at it says something else of" in found.lookup.touches
    assert "the row of r valid at its at that has its k = kk" in found.lookup.in_words
    also_by_its_time = of_history({"on": {"k": "kk", "at": "seen"}, "columns": ["m"]}, right)
    found = load(tmp_path, also_by_its_time).declared("d")
    assert isinstance(found, DerivedFlow) and found.lookup is not None
    assert found.lookup.time == "at" and found.lookup.matched == {"k": "kk", "at": "seen"}


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
        ({"as_of": "latest"}, ["at"], "as_of", "without `as_of` the state that a row has now"),
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
    assert "without `as_of` the state that a row has now is taken" in problem


def test_a_history_that_is_looked_up_beside_another_is_one(tmp_path: Path) -> None:
    """Its rows are those of the left history, so that none overlap either."""
    content = of_history({"columns": {"m": "mm"}}, PAST)
    content["flows"]["l"] = LEFT | {
        "target": {"keys": ["k"], "sequence_by": ["n"], "stored_as_scd_type": 2}
    }
    content["flows"]["l"]["columns"] = LEFT["columns"] | {
        "k": "string not null",
        "n": "int not null",
    }
    again = {"table": "d", "on": ["k"], "columns": {"mm": "again"}, "as_of": "n"}
    content["flows"]["e"] = {"source": {"table": "m"}, "lookup": again}
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
    part = {"table": "r", "on": {"k": "kk"}, "columns": ["m"], **change}
    return {**flows, "d": {"source": {"table": "l"}, "join": part}}


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
        ({"table": "l"}, BY_KEY, "lookup.table", "is the table of `source` too"),
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


@pytest.mark.parametrize(
    ("parts", "left", "right", "wrong"),
    [
        ({"join": JOIN}, APPEND, APPEND, []),
        ({"join": JOIN}, {}, APPEND, ["table l has keys"]),
        ({"join": JOIN}, {}, {}, ["table l has keys", "table r has keys"]),
        (
            {"join": BY_KEYS},
            APPEND,
            APPEND,
            ["join has no `interval`, by which a row of either table could be late"],
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
        assert [found.derivation.timed_by(one.table) for one in found.source.read] == ["at", "seen"]
        without = load(tmp_path, document(parts, LEFT | left, RIGHT | right)).declared("d")
        assert without.source.derivation != found.source.derivation, "another query"
        return
    problems = refused(tmp_path, content)
    assert len(problems) == len(wrong) and all(
        ": flows.d.allowed_lateness: " in one for one in problems
    )
    assert all(part in one for part, one in zip(wrong, problems, strict=True)), problems
