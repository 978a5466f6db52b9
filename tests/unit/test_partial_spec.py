"""`ignore_null_updates` of a landing flow: what it means, and what is refused with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from draindown.config.landing import FlowSpec
from draindown.config.target_kinds import PARTIAL, UPSERT
from tests.unit.test_derived_spec import load, refused

COLUMNS = {
    "id": "string not null",
    "seq": "int not null",
    "a": "int",
    "b": "string",
    "c": "int not null",
}
TARGET = {"keys": ["id"], "sequence_by": ["seq"]}


def document(target: dict[str, Any], **more: Any) -> dict[str, Any]:
    flow = {
        "source": {"files": "landing/*", "format": "json"},
        "columns": COLUMNS,
        "target": target,
    } | more
    return {"pipeline": "p", "lake": "lake", "flows": {"f": flow}}


@pytest.mark.parametrize(
    ("said", "columns"),
    [
        (True, ["a", "b", "c"]),
        (["a"], ["a"]),
        ({"except": ["c", "a"]}, ["b"]),
        ({"except": ["seq_x"]}, None),
        (False, None),
    ],
)
def test_which_columns_null_leaves(tmp_path: Path, said: Any, columns: list[str] | None) -> None:
    content = document(TARGET | {"ignore_null_updates": said})
    if columns is None and said:
        (problem,) = refused(tmp_path, content)
        assert "target.ignore_null_updates.except[0]: 'seq_x' is in no column" in problem
        return
    flow = load(tmp_path, content).flows["f"]
    assert isinstance(flow, FlowSpec) and flow.target.kind is (
        UPSERT if columns is None else PARTIAL
    )
    assert (
        None if flow.target.partial is None else flow.target.partial.columns(list(COLUMNS))
    ) == columns
    assert flow.target.kind.addressable is (columns is None) and flow.target.kind.keyed


@pytest.mark.parametrize(
    ("target", "place", "words"),
    [
        ({"ignore_null_updates": True}, "", "needs keys"),
        (TARGET | {"ignore_null_updates": True, "stored_as_scd_type": 2}, "", "not of a history"),
        (TARGET | {"ignore_null_updates": ["c"]}, "[0]", "'c' is `not null`"),
        (TARGET | {"ignore_null_updates": ["a", "id"]}, "[1]", "'id' is a key"),
        (TARGET | {"ignore_null_updates": ["seq"]}, "[0]", "'seq' is of the sequence"),
        (TARGET | {"ignore_null_updates": ["x"]}, "[0]", "'x' is in no column"),
        (TARGET | {"ignore_null_updates": ["a", "a"]}, "", "names 'a' twice"),
        (
            TARGET | {"ignore_null_updates": "a"},
            "",
            "must be true, a list of columns, or {except: [columns]}",
        ),
        (
            TARGET | {"ignore_null_updates": []},
            "",
            "must be true, a list of columns, or {except: [columns]}",
        ),
    ],
)
def test_what_can_not_be_merged_is_refused(
    tmp_path: Path, target: dict[str, Any], place: str, words: str
) -> None:
    problems = refused(tmp_path, document(target))
    assert len(problems) == 1 and f": flows.f.target.ignore_null_updates{place}: " in problems[0]
    assert words in problems[0]


def test_a_transform_may_make_the_columns(tmp_path: Path) -> None:
    assert load(tmp_path, document(TARGET | {"ignore_null_updates": ["x"]}, transform="m.f"))
