"""The list of a flow's tables: it is complete, and whoever treats all of them takes them from
it.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from draindown.drill import isolation
from draindown.flow import integrity, quarantine
from draindown.lake import storage
from draindown.lake.flow_tables import flow_tables
from draindown.lake.home import FlowHome, Tables
from draindown.ledger import inputs as ledger_inputs
from draindown.ledger import table as ledger_table
from draindown.sources import raw

SCHEMAS = {
    "ledger": ledger_table.SCHEMA,
    "inputs": ledger_inputs.SCHEMA,
    "raw": raw.SCHEMA,
    "resolutions": quarantine.RESOLUTIONS,
}


def _layout(tmp_path: Path) -> FlowHome:
    return FlowHome(str(tmp_path / "lake"), "p", "f", "t", has_sinks=True)


def _paths(layout: FlowHome) -> dict[str, str]:
    return {one.name: one.path for one in flow_tables(layout, 1)}


def test_every_delta_table_of_the_layout_is_in_the_list(tmp_path: Path) -> None:
    layout = _layout(tmp_path)
    described = {
        getattr(layout.tables, name).path
        for name, member in vars(Tables).items()
        if isinstance(member, property)
    }
    assert described | {layout.tables.intake(1).path} == set(_paths(layout).values())


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_key_columns_are_columns(tmp_path: Path, name: str) -> None:
    keys = {one.name: one.keys for one in flow_tables(_layout(tmp_path), 1)}[name]
    assert keys and set(keys) <= set(SCHEMAS[name].names)


@pytest.mark.parametrize("name", list(_paths(FlowHome("", "", "", "", has_sinks=True))))
def test_damage_to_any_table_is_found(tmp_path: Path, name: str) -> None:
    layout = _layout(tmp_path)
    path = _paths(layout)[name]
    write_deltalake(path, pa.table({"n": [1]}))
    Path(
        path, "_delta_log", f"{1:020}.json"
    ).touch()  # an empty commit, as a power failure leaves it
    assert list(integrity.damaged(layout)) == [path]


@pytest.mark.parametrize("name", list(_paths(FlowHome("", "", "", "", has_sinks=True))))
def test_a_drill_that_changes_any_table_of_the_flow_is_caught(tmp_path: Path, name: str) -> None:
    layout = _layout(tmp_path)
    path = _paths(layout)[name]
    write_deltalake(path, pa.table({"n": [1]}))
    before = isolation.look(layout, [])
    assert before.changes() == ([], [])
    write_deltalake(path, pa.table({"n": [2]}), mode="append")
    assert DeltaTable(path).version() == 1
    assert [line.partition(":")[0] for line in before.changes()[0]] == ["lake"]


@pytest.mark.parametrize("name", list(_paths(FlowHome("", "", "", "", has_sinks=True))))
def test_a_table_that_cannot_be_written_is_named(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = _layout(tmp_path)
    path = _paths(layout)[name]
    write_deltalake(path, pa.table({"n": [1]}))
    # root may write everywhere, so the answer of the kernel is replaced
    monkeypatch.setattr(storage.os, "access", lambda place, _: not str(place).startswith(path))
    assert {place: why for why, place in storage._troubles(layout)}.get(path) == "denied"
