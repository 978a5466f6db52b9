"""A table that another engine altered since the flow's newest commit is refused by name until that
is taken back.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draindown.audit.recount import audit
from draindown.base.errors import TerminalError
from draindown.doctor.examination import examine
from draindown.lake.metadata import Shape
from draindown.lake.table import Table
from draindown.ledger.rows import BatchRow
from draindown.planning.plan import plan
from draindown.recovery import rebuild
from draindown.runs.request import Request
from tests.flowfiles import AT, alter, clean_log, drained, foreign, table_of

MAPPED = {"delta.columnMapping.mode": "name"}
OTHER = {
    "name": "x",
    "type": "string",
    "nullable": True,
    "metadata": {"delta.columnMapping.id": 9, "delta.columnMapping.physicalName": "col-9"},
}
"""A column that the flow does not write."""


def metadata(
    path: str, change: Callable[[list[dict[str, Any]]], object], **properties: str
) -> dict[str, Any]:
    """The newest metadata action of a table, its columns with physical names, after `change`."""
    commits = sorted(Path(path, "_delta_log").glob("*.json"))
    lines = [json.loads(line) for one in commits for line in one.read_text().splitlines()]
    newest = [line["metaData"] for line in lines if "metaData" in line][-1]
    fields = json.loads(newest["schemaString"])["fields"]
    for number, one in enumerate(fields, 1):
        one["metadata"].setdefault("delta.columnMapping.id", number)
        one["metadata"].setdefault("delta.columnMapping.physicalName", one["name"])
    change(fields)
    schema = json.dumps({"type": "struct", "fields": fields})
    largest = {
        "delta.columnMapping.maxColumnId": str(
            max(one["metadata"]["delta.columnMapping.id"] for one in fields)
        )
    }
    held = {**newest["configuration"], **MAPPED, **properties}
    return {"metaData": newest | {"schemaString": schema, "configuration": largest | held}}


def rename(path: str, old: str, new: str) -> None:
    """What RENAME COLUMN of another engine commits."""
    change = metadata(
        path, lambda fields: [one.update(name=new) for one in fields if one["name"] == old]
    )
    readers = ["columnMapping"]
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": readers,
        "writerFeatures": readers,
    }
    alter(
        path, "RENAME COLUMN", {"protocol": protocol}, change, oldColumnPath=old, newColumnPath=new
    )


def refused(asked: Request) -> TerminalError:
    with pytest.raises(TerminalError) as caught:
        plan(asked, AT)
    assert caught.value.code == "table-altered"
    return caught.value


@pytest.mark.parametrize("others", [0, 7], ids=["at once", "after rows of others"])
def test_a_renamed_column_stops_the_flow_until_the_name_is_back(
    tmp_path: Path, others: int
) -> None:
    asked = drained(tmp_path)
    path = asked.layout.tables.target.path
    rename(path, "n", "m")
    for _ in range(others):
        alter(path, "DELETE")
    error = refused(asked)
    assert "column n was renamed to m" in error.found and "RENAME COLUMN" in error.found
    assert "Another-Engine/1.0" in error.found and "since version 2" in error.found
    assert error.next[0].startswith(f"ALTER TABLE delta.`{path}` RENAME COLUMN `m` TO `n` ")
    with pytest.raises(TerminalError) as caught:
        audit(asked.spec, "f", root=tmp_path)
    assert caught.value.code == "table-altered"
    wrong = {one.code: one.next for one in examine(asked).symptoms if one.level == "wrong"}
    assert wrong["table-altered"] == error.next[0]
    rename(path, "m", "n")
    assert plan(asked, AT)[0].drain is False
    assert "table-altered" not in {one.code for one in examine(asked).symptoms}


def test_a_commit_of_the_flow_is_what_later_ones_are_compared_with(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    path = asked.layout.tables.target.path
    alter(path, "CHANGE COLUMN", metadata(path, lambda fields: fields[1].update(type="long")))
    assert "column n is long, it was integer" in refused(asked).found
    assert refused(asked).next[0].startswith(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF 2 ")


@pytest.mark.parametrize(
    ("operation", "change", "properties", "said"),
    [
        ("CHANGE COLUMN", lambda fields: fields[1]["metadata"].update(comment="x"), {}, "comment"),
        (
            "ADD COLUMNS",
            lambda fields: fields.append(OTHER),
            {},
            "column x was added",
        ),
        (
            "SET TBLPROPERTIES",
            lambda fields: None,
            {"delta.targetFileSize": "1mb"},
            "delta.targetFileSize",
        ),
        (
            "ADD CONSTRAINT",
            lambda fields: None,
            {"delta.constraints.c": "n > 0"},
            "constraint c requires n > 0",
        ),
        ("CLUSTER BY", lambda fields: None, {}, "clustered by other columns"),
    ],
)
def test_what_changes_no_value_is_reported_and_the_flow_continues(
    tmp_path: Path,
    operation: str,
    change: Callable[..., object],
    properties: dict[str, str],
    said: str,
) -> None:
    asked = drained(tmp_path)
    path = asked.layout.tables.target.path
    alter(path, operation, metadata(path, change, **properties))
    findings = plan(asked, AT)[1]
    (found,) = [one for one in findings if one.kind == "altered"]
    assert said in found.detail and operation in found.detail
    notes = [one for one in examine(asked).symptoms if one.code == "metadata-changed"]
    assert [one.level for one in notes] == ["note"]
    alter(path, "MERGE", note=BatchRow("p", "f", 1, 1, "r").as_metadata())
    assert [one for one in plan(asked, AT)[1] if one.kind == "altered"] == []


def test_a_column_of_others_may_be_dropped_again(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    path = asked.layout.tables.target.path
    alter(path, "ADD COLUMNS", metadata(path, lambda fields: fields.append(OTHER)))
    alter(path, "MERGE", note=BatchRow("p", "f", 1, 1, "r").as_metadata())
    alter(path, "DROP COLUMNS", metadata(path, lambda fields: fields.pop()))
    assert [one.detail for one in plan(asked, AT)[1] if one.kind == "altered"]


def test_an_earlier_version_is_opened_only_after_commits_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = drained(tmp_path)
    opened: list[int] = []

    def counted(path: str, version: int) -> Shape:
        opened.append(version)
        return at(path, version)

    at = Shape.at
    monkeypatch.setattr(Shape, "at", counted)
    plan(asked, AT)
    alter(asked.layout.tables.target.path, "OPTIMIZE")
    plan(asked, AT)
    assert opened == []
    foreign(asked)
    plan(asked, AT)
    assert opened == [2] * len(opened) != []


@pytest.mark.parametrize("keyed", [True, False])
def test_an_append_only_table_is_named_before_rows_would_change(
    tmp_path: Path, keyed: bool
) -> None:
    asked = drained(tmp_path, keyed=keyed)
    alter(
        asked.layout.tables.target.path,
        "SET TBLPROPERTIES",
        metadata(asked.layout.tables.target.path, len, **{"delta.appendOnly": "true"}),
    )
    with pytest.raises(TerminalError) as caught:
        rebuild.plan(asked) if not keyed else plan(asked, AT)
    assert caught.value.code == "table-restricted"
    assert "UNSET TBLPROPERTIES ('delta.appendOnly')" in caught.value.next[0]
    if not keyed:
        assert "append-only" in next(
            one.detail for one in plan(asked, AT)[1] if one.kind == "altered"
        )


def test_nothing_is_compared_once_the_log_lacks_the_newest_commit_of_the_flow(
    tmp_path: Path,
) -> None:
    asked = drained(tmp_path)
    rename(asked.layout.tables.target.path, "n", "m")
    clean_log(asked)
    assert plan(asked, AT)[0].drain is False


@pytest.mark.parametrize("name", ["ledger", "inputs", "intake"])
def test_a_table_beside_the_target_that_was_altered_is_refused(tmp_path: Path, name: str) -> None:
    asked = drained(tmp_path)
    path = table_of(asked.layout, name)
    column = Table(path).fields[-1]["name"]
    rename(path, column, "x")
    error = refused(asked)
    assert error.next[0].startswith(f"ALTER TABLE delta.`{path}` RENAME COLUMN `x` TO `{column}` ")
    rename(path, "x", column)
    assert plan(asked, AT)[0].drain is False
