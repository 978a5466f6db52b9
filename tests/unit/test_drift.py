"""What is remembered of new fields and missing columns: once, bounded, and told to the run that saw
it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from draindown.config.formats import FORMATS
from draindown.config.landing import FlowSpec
from draindown.flow import schema_drift
from draindown.flow.schema_drift import Known, Sighting
from draindown.lake.home import FlowHome

AT = "2026-01-31T12:00:00+00:00"


@pytest.fixture
def layout(tmp_path: Path) -> FlowHome:
    return FlowHome(str(tmp_path), "p", "f", "t")


def flow(keyed: bool = True, **policy: str) -> FlowSpec:
    target = {"keys": ["id"], "sequence_by": ["n"]} if keyed else {}
    columns = {"id": "string not null", "n": "int not null", "a": "int"}
    source = {"files": "x", "format": "json"}
    return FlowSpec.model_validate(
        {"source": source, "columns": columns, "target": target, "drift": policy}
    )


def sighting(name: str, kind: Any = "new-field", **more: Any) -> Sighting:
    seen_by = {"generation": 1, "batch_kind": "drain", "batch": 0, "run_id": "r", "at": AT}
    known = seen_by | {"input": "/in/1", "position": 3}
    return Sighting(kind, name, **(known | {"rows": 2, "type": "int"} | more))


def test_what_was_seen_is_remembered_once(layout: FlowHome) -> None:
    assert schema_drift.seen(layout) == []
    schema_drift.remember(layout, [sighting("x"), sighting("a", "missing-column")])
    schema_drift.remember(
        layout, [sighting("x", batch=1, run_id="later", input="/in/2"), sighting("x", "new-column")]
    )
    assert [(one.kind, one.name, one.input) for one in schema_drift.seen(layout)] == [
        ("new-field", "x", "/in/1"),
        ("missing-column", "a", "/in/1"),
        ("new-column", "x", "/in/1"),
    ]


def test_a_torn_memory_is_made_anew(layout: FlowHome) -> None:
    schema_drift.remember(layout, [sighting("x")])
    Path(layout.drift.path).write_text('{"seen": [{"kind"')
    assert schema_drift.seen(layout) == []
    schema_drift.remember(layout, [sighting("y")])
    assert [one.name for one in schema_drift.seen(layout)] == ["y"]


def test_memory_is_bounded_and_says_so_once(layout: FlowHome) -> None:
    for first in (0, 300, 600, 900):
        schema_drift.remember(layout, [sighting(f"x{i}") for i in range(first, first + 300)])
    seen = schema_drift.seen(layout)
    assert len(seen) == schema_drift.MOST_REMEMBERED + 1
    assert [one.kind for one in seen if not one.name] == ["many-fields"]


def test_a_run_tells_what_it_saw_and_what_the_batches_it_repeated_saw(layout: FlowHome) -> None:
    schema_drift.remember(
        layout, [sighting("x", run_id="died"), sighting("y", run_id="mine", batch=1), sighting("z")]
    )
    told = schema_drift.findings(layout, flow(), "mine", {(1, "drain", 0)})
    assert [(one.kind, one.subject) for one in told] == [("new-field", name) for name in "xyz"]
    assert [one.subject for one in schema_drift.findings(layout, flow(), "mine")] == ["y"]
    schema_drift.remember(layout, [sighting(f"m{i}", run_id="mine") for i in range(30)])
    told = schema_drift.findings(layout, flow(), "mine")
    assert len(told) == 11 and told[-1].kind == "many-fields" and "21 more" in told[-1].detail


def test_a_finding_says_what_to_type(layout: FlowHome) -> None:
    schema_drift.remember(layout, [sighting(name) for name in ("x", "A", "_own", "a b")])
    told = {one.subject: one.next for one in schema_drift.findings(layout, flow(), "r")}
    again = f"draindown replay p/f --from {AT} --to 9999-01-01T00:00Z --yes"
    assert told["x"] == f"add 'x: int' to columns of flow f, run, then fill older rows: {again}"
    assert "beside a" in told["A"]
    assert "by this name" in told["_own"] and "by this name" in told["a b"]
    (appended,) = (
        one for one in schema_drift.findings(layout, flow(keyed=False), "r") if one.subject == "x"
    )
    assert "replay" not in appended.next


_WRITE = re.compile(r"write (\S+): \{type: \.\.\., from: (.*)\}$")


@pytest.mark.parametrize(
    ("field", "gone", "column"),
    [
        ("ID", (), "id_2"),
        ("A", ("n", "id"), "a_2"),
        ("a=", (), "a_2"),
        ("arrived at", (), "arrived_at_2"),
        ("total cost", (), "total_cost"),
        ("1 a", (), "f_1_a"),
    ],
)
def test_what_a_finding_says_to_write_is_a_contract(
    layout: FlowHome, field: str, gone: tuple[str, ...], column: str
) -> None:
    spec = flow(keyed=False)
    schema_drift.remember(layout, [sighting(field, with_it=gone, type="int")])
    (told,) = schema_drift.findings(layout, spec, "r")
    found = _WRITE.search(told.next)
    assert found is not None and found[1] == column
    added = {found[1]: {"type": "int", "from": json.loads(found[2])}}
    FlowSpec.model_validate(
        {**spec.model_dump(), "columns": {**spec.model_dump()["columns"], **added}}
    )


@pytest.mark.parametrize(
    ("field", "column"),
    [("a.x", None), ("s.x", "s"), ("s.t.x", "t"), ("o.y", "o"), ("s.tt", "s"), ("sx.y", None)],
)
def test_a_field_within_another_is_named_in_the_struct_that_holds_it(
    layout: FlowHome, field: str, column: str | None
) -> None:
    columns = {
        "a": "int",
        "s": "struct<b: int>",
        "t": {"type": "array<struct<c: int>>", "from": "s.t"},
        "o": "map<string, struct<d: int>>",
        "sx": "json",
    }
    spec = FlowSpec.model_validate({"source": {"files": "x", "format": "json"}, "columns": columns})
    schema_drift.remember(layout, [sighting(field)])
    (told,) = schema_drift.findings(layout, spec, "r")
    if column is None:
        assert f'from: "{field}"' in told.next and "name it in the type" not in told.next
    else:
        assert (
            f"name it in the type of column {column} of flow f, then draindown rebuild" in told.next
        )


def test_what_is_no_news_depends_on_the_policy(layout: FlowHome) -> None:
    schema_drift.remember(
        layout, [sighting("x"), sighting("_own"), sighting("A"), sighting("a", "missing-column")]
    )
    assert schema_drift.known(layout, flow(), {}) == Known(
        frozenset({"x", "_own", "A"}), frozenset({"a"})
    )
    assert schema_drift.known(
        layout, flow(new_columns="fail", missing_columns="fail"), {}
    ) == Known(all_records=True)
    added = schema_drift.known(
        layout, flow(new_columns="add"), {"id", "n", "a", "gate", "_rescued_data"}
    )
    assert added.fields == {"_own", "A", "gate", "_rescued_data"}


def test_fields_that_got_a_column_are_not_listed_any_more(layout: FlowHome) -> None:
    schema_drift.remember(layout, [sighting("x"), sighting("n"), sighting("a", "missing-column")])
    assert [one.name for one in schema_drift.unnamed(layout, flow())] == ["x", "a"]


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        ([], "no value yet"),
        ([None, None], "no value yet"),
        (["", None, " "], "empty text"),
        (["", "1"], "string"),
        (["1", None], "int"),
        (["-1", "3000000000"], "bigint"),
        (["1", "1e3"], "double"),
        (["1", "99999999999999999999"], "double"),
        (["true", "false"], "boolean"),
        (["2026-01-31"], "date"),
        (["2026-01-31", "2026-01-31T12:00:00Z"], "timestamp"),
        (["1", "x"], "string"),
        (["NaN"], "string"),
        (["1_000"], "string"),
        (['{"a":1}'], "json"),
        (["1", "[]"], "json"),
        (['{"a":"' + "x" * schema_drift.SHOWN], "json"),
        (["[info] x", "{"], "string"),
    ],
)
def test_the_likely_type_is_the_narrowest_that_fits(texts: list[str | None], kind: str) -> None:
    assert schema_drift.likely(texts, FORMATS["json"]) == kind


@pytest.mark.parametrize(
    ("text", "form", "kind"),
    [
        ('{"a":1}', "csv", "string"),
        ('{"a":1}', "parquet", "struct<...>"),
        ("[1]", "orc", "array<...>"),
        ("1", "orc", "int"),
    ],
)
def test_only_a_json_file_has_columns_of_type_json(text: str, form: str, kind: str) -> None:
    assert schema_drift.likely([text], FORMATS[form]) == kind


@pytest.mark.parametrize("kind", ["no value yet", "empty text"])
def test_a_field_without_a_value_is_given_no_type_until_its_first_value_comes(
    layout: FlowHome, kind: str
) -> None:
    schema_drift.remember(layout, [sighting("x", type=kind)])
    (told,) = schema_drift.findings(layout, flow(), "r")
    assert "like" not in told.detail and "replay" not in told.next and "add" not in told.next
    known = schema_drift.known(layout, flow(), {})
    assert "x" not in known.fields and known.null | known.empty == {"x"}
    schema_drift.remember(layout, [sighting("x", type=kind, batch=1, run_id="again")])
    assert [one.batch for one in schema_drift.seen(layout)] == [0], "it is reported once"
    schema_drift.remember(layout, [sighting("x", type="int", batch=2, run_id="later")])
    (first_value,) = schema_drift.findings(layout, flow(), "later")
    # an earlier record has a text that is no number
    expected = "int" if kind == "no value yet" else "string"
    assert f"like {expected}" in first_value.detail and f"'x: {expected}'" in first_value.next
    assert schema_drift.known(layout, flow(), {}).fields == {"x"}
    schema_drift.remember(layout, [sighting("x", type=kind, batch=3)])
    assert [(one.name, one.batch) for one in schema_drift.seen(layout)] == [("x", 2)]


def test_a_null_and_then_an_empty_text_and_then_a_number_is_text(layout: FlowHome) -> None:
    for kind in ("no value yet", "empty text", "int"):
        schema_drift.remember(layout, [sighting("x", type=kind)])
    assert [one.type for one in schema_drift.seen(layout)] == ["string"]


def test_the_type_of_a_field_within_a_struct_is_not_said(layout: FlowHome) -> None:
    columns = {"id": "string not null", "s": "struct<b: int>"}
    spec = FlowSpec.model_validate({"source": {"files": "x", "format": "json"}, "columns": columns})
    schema_drift.remember(layout, [sighting("s.x", type="")])
    (told,) = schema_drift.findings(layout, spec, "r")
    assert "like" not in told.detail and "name it in the type of column s" in told.next


_RENAMED = re.compile(
    r"if it is (\S+) under a new name, change the column to '(.*?)' in columns of flow f, then "
)
_PRICED = {
    "id": "string not null",
    "n": "int not null",
    "price": "decimal(12,2)",
    "due": {"type": "date", "format": "d.M.yyyy"},
    "net": {"type": "decimal(12,2) not null", "from": "Netto", "decimal_separator": ","},
    "paid": "boolean",
}


def _priced(keyed: bool = True) -> FlowSpec:
    target = {"keys": ["id"], "sequence_by": ["n"]} if keyed else {}
    return FlowSpec.model_validate(
        {"source": {"files": "x", "format": "csv"}, "columns": _PRICED, "target": target},
    )


@pytest.mark.parametrize(
    ("field", "like", "gone", "beside", "column", "sure"),
    [
        ("Price EUR", "double", ["price"], [], "price", True),
        ("PRICE", "int", ["price"], ["other"], "price", True),
        ("price", "int", [], [], None, False),
        ("unitPrice", "double", ["price", "due"], ["other"], "price", True),
        ("Nettobetrag", "string", ["Netto"], [], "net", False),
        ("amount", "double", ["price"], [], "price", False),
        ("amount", "double", ["price"], ["other"], None, False),
        ("amount", "double", ["price", "due"], [], None, False),
        ("Price EUR", "date", ["price"], [], None, False),
        ("Price EUR", "double", ["price"], ["Price USD"], None, False),
        ("due_on", "string", ["due", "price"], [], "due", True),
        ("Preis", "no value yet", ["price"], [], "price", False),
        ("settled", "int", ["paid"], [], None, False),
        ("id2", "string", ["id"], [], "id", True),
        ("x", "int", [], [], None, False),
    ],
)
def test_a_renamed_column_is_read_from_its_new_name(
    layout: FlowHome,
    field: str,
    like: str,
    gone: list[str],
    beside: list[str],
    column: str | None,
    sure: bool,
) -> None:
    spec = _priced()
    fields = [sighting(name, type=like, with_it=tuple(gone)) for name in (field, *beside)]
    schema_drift.remember(layout, [*fields, *(sighting(name, "missing-column") for name in gone)])
    told = {one.subject: one for one in schema_drift.findings(layout, spec, "r")}
    found = _RENAMED.match(told[field].next)
    assert (found and found[1]) == column
    if found is None:
        assert all("see there" not in told[name].next for name in gone)
        return
    assert ("if it is another field" in told[field].next) == (not sure)
    assert field in told[spec.fields[found[1]]].next, (
        "what is told of the missing column leads there"
    )
    (changed,) = yaml.safe_load(f"{{{found[2]}}}").items()
    columns = {**_PRICED, changed[0]: changed[1]}
    again = FlowSpec.model_validate({**spec.model_dump(), "columns": columns})
    assert again.fields[found[1]] == field
    before, after = spec.columns[found[1]], again.columns[found[1]]
    assert after.model_copy(update={"taken_from": before.taken_from}) == before, (
        "all else stays as it was"
    )


@pytest.mark.parametrize(
    ("gone", "keyed", "command"),
    [
        ("price", True, f"draindown replay p/f --from {AT} --to 9999-01-01T00:00Z --yes"),
        ("price", False, "price stays NULL in rows that were read meanwhile"),
        ("Netto", True, "draindown quarantine release p/f --reason not_null:net --yes"),
        ("id", True, "draindown quarantine release p/f --reason not_null:id --yes"),
    ],
)
def test_rows_that_were_read_without_the_renamed_column_come_back(
    layout: FlowHome, gone: str, keyed: bool, command: str
) -> None:
    schema_drift.remember(layout, [sighting(f"{gone} new", type="", with_it=(gone,))])
    (told,) = schema_drift.findings(layout, _priced(keyed), "r")
    assert told.next.endswith(command)


def test_a_renamed_field_of_a_kafka_value_is_one_of_the_value(layout: FlowHome) -> None:
    source = {"kafka": {"topics": ["t"], "bootstrap_servers": "b:1"}, "format": "json"}
    spec = FlowSpec.model_validate({"source": source, "columns": {"price": "int"}})
    schema_drift.remember(layout, [sighting("key", type="int", with_it=("price",))])
    (told,) = schema_drift.findings(layout, spec, "r")
    assert 'from: "field:key"' in told.next
