"""Derived tables are named by `audit` and `doctor`: what is known, and the command that compares."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake

from draindown.audit import recount
from draindown.audit.model import Audit
from draindown.base.errors import TerminalError
from draindown.cli import auditing
from draindown.cli.program import main
from draindown.config.models import PipelineSpec
from draindown.doctor.examination import examine
from draindown.lake.table import Table
from draindown.proof.certificate import Certificate, Snapshot
from draindown.proof.digest import digest
from draindown.runs.request import Request

LANDING = {"source": {"files": "x/*", "format": "json"}, "columns": {"at": "timestamp"}}
DERIVED = {
    "source": {"table": "t"},
    "window": {"time": "at", "size": "1h", "measures": {"c": "count(*)"}},
}
ROWS = pa.table(
    {"k": ["a", "b", None], "n": [1, 2, 3], "at": pa.array([0, 1, 2], pa.timestamp("us", tz="UTC"))}
)


@pytest.fixture
def spec(tmp_path: Path) -> PipelineSpec:
    document = {
        "pipeline": "p",
        "lake": str(tmp_path / "lake"),
        "flows": {"t": LANDING, "d": DERIVED, "e": DERIVED},
    }
    (tmp_path / "dags" / "pipelines").mkdir(parents=True)
    (tmp_path / "dags" / "pipelines" / "p.yaml").write_text(yaml.safe_dump(document))
    found = PipelineSpec.model_validate(document)
    write_deltalake(found.layout("d").tables.target.path, ROWS)
    return found


def _certificate(spec: PipelineSpec, flow: str, differing: int) -> Certificate:
    log = spec.layout(flow).tables.target
    versions: dict[str, Any] = {
        "sources": [Snapshot("t", "i", 3)],
        "table": Snapshot(log.path, log.id, log.version),
    }
    numbers: dict[str, Any] = {
        "share": 1.0,
        "expected": 3,
        "found": 3,
        "digest": "00ff",
        "differing": differing,
    }
    more: dict[str, Any] = {
        "falsehoods": [],
        "at": datetime(2026, 3, 1, tzinfo=UTC),
        "seconds": 1.0,
    }
    return Certificate(
        pipeline="p", flow=flow, kind="window", engine="duckdb 1", **versions, **numbers, **more
    )


class Typed:
    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._root, self._capsys = root, capsys

    def __call__(self, *words: str) -> tuple[int, str]:
        code = main(["--root", str(self._root), *words])
        return code, self._capsys.readouterr().out


@pytest.fixture
def typed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Typed:
    clean = Audit("p", "t", [])
    monkeypatch.setattr(recount, "audit", lambda *_, **__: clean)
    return Typed(tmp_path, capsys)


def test_an_audit_names_derived_flows_and_what_the_newest_proof_found(
    spec: PipelineSpec, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, text = typed("audit")
    assert code == 0 and "p/d  derived: not recomputed" in text and "next: draindown" in text
    assert "audit p/d" in text and "run p/e" in text, "e has no table"

    monkeypatch.setattr(
        auditing, "_prove", lambda _here, spec, flow, *_: _certificate(spec, flow, 0)
    )
    assert typed("audit", "p/d")[0] == 0
    code, text = typed("audit")
    assert code == 0 and "holds for version 0" in text and "audit p/d" not in text

    write_deltalake(spec.layout("d").tables.target.path, ROWS, mode="append")
    code, text = typed("audit")
    assert code == 0 and "not proven since: version 1" in text and "audit p/d" in text

    monkeypatch.setattr(
        auditing, "_prove", lambda _here, spec, flow, *_: _certificate(spec, flow, 2)
    )
    assert typed("audit", "p/d")[0] == 1
    code, text = typed("audit", "--json")
    told = json.loads(text)
    assert (code, told["clean"]) == (1, False)
    assert [(one["flow"], one["clean"]) for one in told["flows"]] == [
        ("t", True),
        ("d", False),
        ("e", True),
    ]
    assert "reset p/d" in told["flows"][1]["next"]


def test_doctor_sends_to_a_proof_of_a_derived_table_until_it_holds(
    spec: PipelineSpec, typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def foreign() -> list[str]:
        request = Request(spec=spec, flow="d", step="plan", run_id="r", root=str(tmp_path))
        return [one.next for one in examine(request).symptoms if one.code == "foreign-commits"]

    DeltaTable(spec.layout("d").tables.target.path).update(updates={"n": "7"}, predicate="k = 'a'")
    assert foreign() == ["draindown audit p/d"]
    monkeypatch.setattr(
        auditing, "_prove", lambda _here, spec, flow, *_: _certificate(spec, flow, 1)
    )
    assert typed("audit", "p/d")[0] == 1
    assert foreign() == ["draindown reset p/d --yes   # compares the whole table"]
    monkeypatch.setattr(
        auditing, "_prove", lambda _here, spec, flow, *_: _certificate(spec, flow, 0)
    )
    assert typed("audit", "p/d")[0] == 0
    assert foreign() == []


def test_a_flow_that_cannot_be_proven_keeps_no_other_from_it(
    spec: PipelineSpec, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = 0

    def prove(_here: Any, spec: PipelineSpec, flow: str, *_: Any) -> Certificate:
        if flow == "e":
            return _certificate(spec, "d", wrong)
        raise TerminalError(
            "nothing-to-prove", tried="prove", found="no batch", changed="nothing", next="run it"
        )

    monkeypatch.setattr(auditing, "_prove", prove)
    code, text = typed("audit", "p")
    assert (
        code == 78
        and "p/d  not audited\n  nothing-to-prove: " in text
        and "digest of that version 00ff" in text
    )
    wrong = 1
    code, text = typed("audit", "p", "--json")
    told = json.loads(text)
    assert (code, told["clean"]) == (1, False)
    assert [one.get("error", {}).get("code") for one in told["flows"]] == [
        None,
        "nothing-to-prove",
        None,
    ]
    assert [one["clean"] for one in told["flows"]] == [True, False, False]
    assert typed("audit", "p/d") == (78, ""), "the error alone, on stderr"


def test_the_digest_is_of_the_rows_alone(tmp_path: Path) -> None:
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    write_deltalake(one, ROWS)
    for at in (2, 0, 1):
        write_deltalake(
            other, ROWS.slice(at, 1).append_column("_changed_at", pa.array([at])), mode="append"
        )
    first = digest(Table(one))
    assert len(first) == 16 and first == digest(Table(other)) and int(first, 16) > 2**40
    write_deltalake(one, ROWS.slice(0, 1), mode="append")
    assert (
        digest(Table(one)) not in (first, digest(Table(one, 0))) and digest(Table(one, 0)) == first
    )
