"""`draindown drill shuffle`: an honest pipeline holds, and a transform that depends on the order is found."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from draindown.cli import main

_PIPELINE: dict[str, Any] = {
    "pipeline": "shop",
    "lake": "lake",
    "flows": {
        "orders": {
            "source": {"files": "in/*.json", "format": "json", "settle": 0},
            "columns": {"id": "string not null", "n": "int not null", "op": "string", "g": "string", "at": "timestamp"},
            "rules": {"known": "op in ('u', 'd')"},
            "transform": "orders.shape",
            "target": {"keys": ["id"], "sequence_by": ["n"], "apply_as_deletes": "op = 'd'"},
        },
        "hourly": {
            "source": {"table": "orders"},
            "window": {"time": "at", "size": "1 hour", "group_by": ["g"], "measures": {"rows": "count(*)"}},
        },
    },
}
_FOLDED: dict[str, Any] = {
    **_PIPELINE,
    "flows": {
        "orders": {name: part for name, part in _PIPELINE["flows"]["orders"].items() if name != "transform"},
        "numbered": {
            "source": {"table": "orders"},
            "processor": {
                "class": "numbers.Numbers",
                "by": ["g"],
                "order_by": ["at", "n"],
                "expire": "1 day",
                "columns": {"n": "bigint", "number": "bigint"},
                "snapshot": {"rows": "bigint"},
            },
        },
    },
}
_KEPT_IN_THE_SNAPSHOT = """\
class Numbers:
    def process(self, snapshot, rows):
        first = snapshot["rows"] if snapshot else 0
        made = [{"n": row["n"], "number": at} for at, row in enumerate(rows, first + 1)]
        return made, {"rows": first + len(rows)}
"""
_HONEST = (
    "from pyspark.sql import functions as F\n\n\ndef shape(df):\n    return df.withColumn('size', F.length('g'))\n"
)
_BY_ORDER = """\
from pyspark.sql import functions as F

codes = {}


@F.udf("int")
def code(id):
    # numbers by appearance, kept in the worker: another order, other numbers
    return codes.setdefault(id, len(codes))


def shape(df):
    return df.withColumn("size", code("id"))
"""


def _project(home: Path, pipeline: dict[str, Any], file: str, code: str) -> None:
    (home / "dags" / "pipelines").mkdir(parents=True)
    (home / "dags" / "pipelines" / "shop.yaml").write_text(json.dumps(pipeline))
    path = home / "jobs" / file
    path.parent.mkdir(parents=True)
    path.write_text(code)
    (home / "in").mkdir()
    draw = Random(1)
    for number in range(9):
        rows = [
            {
                "id": f"k{draw.randrange(30)}",
                "n": number * 100 + at,
                "op": draw.choice(("u", "u", "u", "d", "x")),
                "g": draw.choice("ab"),
                "at": f"2026-03-01T{draw.randrange(24):02}:00:00Z",
            }
            for at in range(8)
        ]
        (home / "in" / f"{number}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("transform", [_HONEST, _BY_ORDER], ids=["honest", "by-order"])
def test_a_transform_that_depends_on_order_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, transform: str
) -> None:
    monkeypatch.setenv("DRAINDOWN_MASTER", "local[2]")
    home, scratch = tmp_path / "project", tmp_path / "scratch"
    _project(home, _PIPELINE, "transforms/orders.py", transform)
    words = ["--root", str(home), "drill", "shuffle", "shop", "--flow", "hourly", "--seeds", "1"]
    code = main([*words, "--scratch", str(scratch), "--json"])
    said = json.loads(capsys.readouterr().out)
    (order,) = said["orders"]
    assert order["failed"] == "" and said["wrong"] == said["unlooked"] == [], said
    assert "its driver was killed in batch" in order["kills"]["orders"]
    assert order["slices"]["orders"] != [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    if transform == _HONEST:
        assert code == 0 and said["held"] and order["differences"] == [] and not scratch.exists(), said
        return
    assert code == 1 and not said["held"]
    first = order["differences"][0]
    assert (first["flow"], first["what"]) == ("orders", "table") and first["key"].startswith("id k")
    assert first["detail"].startswith("size is ") and first["control"].startswith("slice ")
    assert first["shuffled"].startswith("slice ") and not (home / "lake").exists()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_processor_holds_in_any_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAINDOWN_MASTER", "local[2]")
    home, scratch = tmp_path / "project", tmp_path / "scratch"
    _project(home, _FOLDED, "processors/numbers.py", _KEPT_IN_THE_SNAPSHOT)
    words = ["--root", str(home), "drill", "shuffle", "shop", "--flow", "numbered", "--seeds", "1"]
    exit_code = main([*words, "--scratch", str(scratch), "--json"])
    said = json.loads(capsys.readouterr().out)
    (order,) = said["orders"]
    assert order["failed"] == "" and said["wrong"] == said["unlooked"] == [], said
    assert exit_code == 0 and said["held"] and order["differences"] == [], said
