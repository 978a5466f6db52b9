"""What others did to rows of a table: found, accepted, audited and explained."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from draindown.audit.model import Audit
from draindown.audit.recount import audit
from draindown.base.errors import TerminalError
from draindown.cli import main
from draindown.doctor.examination import examine
from draindown.flow import foreign, foreign_rows
from draindown.gate import acceptance, published
from draindown.gate.published import Published
from draindown.lake.table_log import TableLog
from tests.flowfiles import AT
from tests.landed_lake import _SCHEMA, LandedLake

RECORDS = [json.dumps({"id": str(number), "n": 5, "v": number}) for number in range(6)]


@pytest.fixture
def lake(tmp_path: Path) -> LandedLake:
    """A flow with one batch of six keys."""
    made = LandedLake(tmp_path)
    made.drain(RECORDS)
    return made


def table(lake: LandedLake) -> DeltaTable:
    return DeltaTable(lake.layout.table)


def audited(lake: LandedLake) -> Audit:
    return audit(lake.spec, "f", root=lake.home)


def kinds(found: Audit) -> set[str]:
    return {residue.kind for residue in found.residues}


def wrong(lake: LandedLake) -> set[str]:
    return {symptom.code for symptom in examine(lake.request).symptoms if symptom.level == "wrong"}


Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(lake: LandedLake, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in the flow's project; return its exit code and all that it printed."""

    def run(*words: str) -> tuple[int, str]:
        code = main(["--root", str(lake.home), *words])
        told = capsys.readouterr()
        return code, told.out + told.err

    return run


def publish(lake: LandedLake) -> Published:
    """Publish the newest version, as a check does."""
    state = published.unpublished(lake.layout)
    assert state is not None
    has = published.foreign(lake.layout, state)
    pointer = Published(
        version=state.version,
        table_id=state.table_id,
        committed_ms=state.committed_ms,
        changed_at=AT,
        at=AT,
        run_id="r",
        rows=1,
        foreign=has,
    )
    return published.publish(lake.layout, pointer)


def _insert(lake: LandedLake) -> None:
    rows = [{"id": "x", "n": 1, "v": 1}, {"id": "y", "n": 1, "v": 1}]
    write_deltalake(lake.layout.table, pa.Table.from_pylist(rows, schema=_SCHEMA), mode="append")


def _delete(lake: LandedLake) -> None:
    table(lake).delete("id in ('0', '1')")


def _older(lake: LandedLake) -> None:
    table(lake).update(predicate="id = '2'", updates={"n": "3"})


def _newer(lake: LandedLake) -> None:
    table(lake).update(predicate="id = '3'", updates={"n": "9"})


def _content(lake: LandedLake) -> None:
    table(lake).update(predicate="id = '4'", updates={"v": "99"})


CHANGES: dict[str, tuple[Callable[[LandedLake], None], tuple[int, int, int], set[str]]] = {
    "insert": (_insert, (2, 0, 0), {"row-count", "key-from-nowhere"}),
    "delete": (_delete, (0, 0, 2), {"row-count", "lost-key"}),
    "older": (_older, (0, 1, 0), {"old-sequence"}),
    "newer": (_newer, (0, 1, 0), {"sequence-from-nowhere"}),
    "content": (_content, (0, 1, 0), set()),
}


@pytest.mark.parametrize(("change", "rows", "residues"), CHANGES.values(), ids=CHANGES)
def test_an_accepted_commit_leaves_no_residue(
    lake: LandedLake, run: Run, change: Callable[[LandedLake], None], rows: tuple[int, int, int], residues: set[str]
) -> None:
    change(lake)
    version = table(lake).version()
    assert kinds(audited(lake)) == {"foreign-commit", *residues}
    plan = run("gate", "accept", "p", "--version", str(version))
    assert plan[0] == 2 and foreign.undecided(lake.layout, lake.spec.flow("f"))
    assert run("gate", "accept", "p", "--version", str(version), "--yes")[0] == 2, "a reason is asked for"
    assert run("gate", "accept", "p", "--version", str(version), "--reason", "by law", "--yes")[0] == 0
    found = audited(lake)
    assert (kinds(found), found.clean) == (set(), True)
    (accepted,) = found.accepted
    assert (accepted.inserted, accepted.updated, accepted.deleted) == rows
    assert "by law" in str(found) and found.asdict()["accepted"][0]["reason"] == "by law"
    assert "foreign-commits" not in wrong(lake)
    assert "by law" in run("gate", "show", "p")[1]
