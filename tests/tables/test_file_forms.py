"""What is said of files that can't be read as they were taken in, and the command that helps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from draindown.base.errors import TerminalError
from draindown.flow import discards
from draindown.recovery import rebuild
from draindown.sources import intake
from draindown.sources.registry import source_of
from draindown.sources.slices import Unit
from draindown.spark.batch import schema_drift
from draindown.spark.sources.input import SliceInput
from tests.flowfiles import AT, drained, take_in, waiting

CSV: dict[str, Any] = {"files": "in/*", "format": "csv"}
BARE = CSV | {"header": False}
JSON: dict[str, Any] = {"files": "in/*", "format": "json"}
DOCUMENTS = JSON | {"multiline": True}


def refused(act: Callable[[], object]) -> TerminalError:
    with pytest.raises(TerminalError) as caught:
        act()
    return caught.value


def units(asked: Any) -> list[Unit]:
    return [unit for one in intake.slices(asked.layout, 1) for unit in one.units]


@pytest.mark.parametrize(
    ("before", "data", "after", "how"),
    [
        (BARE, b"a\n1\n", CSV, "without a header"),
        (BARE, b"\n \n", CSV, None),
        (BARE, b"", CSV, None),
        (CSV, b"a\n1\n", BARE, None),
        (CSV, b"a\n1\n", CSV | {"null_marker": "-"}, None),
        (JSON, b'[\n {"a": 1}\n]\n', DOCUMENTS, "line by line"),
        (DOCUMENTS, b'[\n {"a": 1}\n]\n', JSON, "as documents or columns"),
        (JSON, b'{"a": 1}\n', CSV, "without a header"),
        (JSON, b'{"a": 1}\n', JSON, None),
    ],
)
def test_files_that_were_taken_in_by_another_form_are_not_read_by_this_one(
    tmp_path: Path, before: dict[str, Any], data: bytes, after: dict[str, Any], how: str | None
) -> None:
    asked = waiting(tmp_path, **before)
    (tmp_path / "in/1").write_bytes(data)
    take_in(asked, heap_bytes=1024**3, now=AT)
    now = waiting(tmp_path, **after)
    source = source_of(now)
    for act in (lambda: source.refuse_changed(units(now)), lambda: rebuild.plan(now)):
        if how is None:
            act()
            continue
        error = refused(act)
        assert error.code == "form-changed" and f"in/1: {how}" in error.found
        assert (
            error.next[0].startswith("put the flow's source back")
            and "--accept-missing" in error.next[1]
        )
    (tmp_path / "in/1").unlink()
    assert set(source_of(now).missing(units(now))) == {str(tmp_path / "in/1")}


def test_lines_that_differ_are_no_reason_to_blame_the_file_first(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    read = {unit.name: 0 for unit in units(asked)}
    error = refused(lambda: source_of(asked).refuse_miscounted(1, units(asked), read))
    assert error.code == "lines-differ" and "their bytes are as they were" in error.found
    assert error.next[0].startswith("put the flow's source back") and error.next[0].endswith(
        "draindown run p"
    )


def test_a_rebuild_names_a_discard_only_of_what_the_live_table_has_not_read(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    staged = source_of(asked.model_copy(update={"staged": 2}))
    read, fresh = str(tmp_path / "in/0.json"), str(tmp_path / "in/2.json")
    assert staged.leaving_out([fresh]).startswith(f"draindown input discard p/f --file {fresh}")
    for names in ([read], [fresh, read]):
        assert staged.leaving_out(names).startswith("draindown rebuild p/f --abort --yes")
    assert source_of(asked).leaving_out([read]).startswith("draindown input discard")
    error = refused(lambda: staged.refuse_miscounted(1, units(asked)[:1], {}))
    assert all("discard" not in step for step in error.next) and "--abort" in error.next[0]


def test_a_discard_of_what_was_read_says_so(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    read = str(tmp_path / "in/0.json")
    for names, said in (([read], "a batch has read"), (["/never/seen"], "not parked: /never/seen")):
        error = refused(
            lambda names=names: discards.discard_input(  # type: ignore[misc]
                source_of(asked), asked.layout, names, by="me", note="", at=AT
            )
        )
        assert error.code == "not-parked" and said in error.found


@pytest.mark.parametrize(("by_name", "staged"), [(True, 0), (True, 2), (False, 0)])
def test_drift_that_is_refused_names_a_discard_only_where_units_can_be_left_out(
    tmp_path: Path, by_name: bool, staged: int
) -> None:
    asked = drained(tmp_path).model_copy(update={"staged": staged})
    source: Any = source_of(asked)
    source = SimpleNamespace(
        unit=source.unit,
        named=source if by_name else None,
        leaving_out=source.leaving_out if by_name else lambda _: "input list",
    )
    (one, *_) = intake.slices(asked.layout, 1)
    reader: Any = SimpleNamespace(name=lambda unit: unit)
    writer = SimpleNamespace(layout=asked.layout, flow=asked.flow_spec)
    batch: Any = SimpleNamespace(kind="drain", input=SliceInput(source, one, reader), writer=writer)
    seen: Any = [SimpleNamespace(unit=one.units[0].name)]
    error = schema_drift._refused(
        batch, ["field x"], ["add 'x: int'"], ["new_columns: rescue"], seen
    )
    assert any("input discard" in step for step in error.next) == (by_name and not staged)
    assert not any("input list" in step for step in error.next)
    assert any("--abort" in step for step in error.next[:2]) == bool(staged)
