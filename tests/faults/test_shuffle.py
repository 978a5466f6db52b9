"""`draindown drill shuffle`: an honest pipeline holds; a transform that depends on the order is
found, and a processor that keeps something in its class.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from draindown.cli.program import main
from draindown.config.derived import KINDS, DerivedFlow
from draindown.config.models import PipelineSpec
from draindown.ledger import table as ledger_table

Row = dict[str, Any]

_PIPELINE: dict[str, Any] = {
    "pipeline": "shop",
    "lake": "lake",
    "flows": {
        "orders": {
            "source": {"files": "in/*.json", "format": "json", "min_file_age": 0},
            "columns": {
                "id": "string not null",
                "n": "int not null",
                "op": "string",
                "g": "string",
                "at": "timestamp",
            },
            "rules": {"known": "op in ('u', 'd')"},
            "transform": "orders.shape",
            "target": {"keys": ["id"], "sequence_by": ["n"], "apply_as_deletes": "op = 'd'"},
        },
        "hourly": {
            "source": {"table": "orders"},
            "window": {
                "time": "at",
                "size": "1 hour",
                "group_by": ["g"],
                "measures": {"rows": "count(*)"},
            },
        },
    },
}
_FOLDS = {"Kept": "at", "ByKey": "at", "OfAll": "at", "Begun": "day"}
"""Classes that number rows, and the time of these: the first keeps the number in its state, the
others in the class.
"""
_FOLDED: dict[str, Any] = {
    **_PIPELINE,
    "flows": {
        "orders": {
            "source": _PIPELINE["flows"]["orders"]["source"],
            "columns": {
                "id": "string",
                "n": "int",
                "g": "string",
                "at": "timestamp",
                "day": "timestamp",
            },
        },
        "hourly": _PIPELINE["flows"]["hourly"],
        **{
            name.lower(): {
                "source": {"table": "orders"},
                "processor": {
                    "class": f"numbers.{name}",
                    "group_by": ["g"],
                    "order_by": [time, "n"],
                    "gap": "1 day",
                    "columns": {"n": "bigint", "number": "bigint"},
                    "state": {"rows": "bigint"},
                },
            }
            for name, time in _FOLDS.items()
        },
    },
}
_KINDS: dict[str, Any] = {
    **_PIPELINE,
    "flows": {
        "orders": _FOLDED["flows"]["orders"],
        "groups": _FOLDED["flows"]["orders"]
        | {
            "columns": {"g": "string not null", "n": "int not null"},
            "target": {"keys": ["g"], "sequence_by": ["n"]},
        },
        **{
            name: {"source": {"table": "orders"}, **part}
            for name, part in {
                "windows": {
                    "window": {
                        "time": "at",
                        "size": "3 minutes",
                        "group_by": ["g"],
                        "measures": {"sum": "sum(n)"},
                    }
                },
                "sessions": {
                    "session": {
                        "time": "at",
                        "gap": "1 minute",
                        "group_by": ["g"],
                        "measures": {"sum": "sum(n)"},
                    }
                },
                "query": {
                    "query": {
                        "keys": ["g"],
                        "sql": "select g, max(at) as last from orders group by g",
                    }
                },
                "first": {"deduplicate": {"keys": ["g"], "sequence_by": ["at"]}},
                "best": {"top": {"group_by": ["g"], "order_by": ["at desc"], "rows": 2}},
                "past": {
                    "target": {
                        "keys": ["g"],
                        "sequence_by": ["at"],
                        "stored_as_scd_type": 2,
                        "track_history": {"except": ["id"]},
                    }
                },
                "kept": _FOLDED["flows"]["kept"],
            }.items()
        },
        "pairs": {
            "source": {"table": "orders"},
            "join": {"table": "groups", "on": ["g"], "columns": {"n": "newest"}},
        },
        "named": {
            "source": {"table": "orders"},
            "lookup": {"table": "groups", "on": ["g"], "columns": {"n": "newest"}},
        },
    },
}
_NUMBERS = """\
class Kept:
    def process(self, state, rows):
        first = state["rows"] if state else 0
        made = [{"n": row["n"], "number": at} for at, row in enumerate(rows, first + 1)]
        return made, {"rows": first + len(rows)}


class ByKey:
    rows = {}

    def process(self, state, rows):
        made = []
        for row in rows:
            self.rows[row["g"]] = self.rows.get(row["g"], 0) + 1
            made.append({"n": row["n"], "number": self.rows[row["g"]]})
        return made, {"rows": 0}


class OfAll:
    rows = 0

    def process(self, state, rows):
        made = []
        for row in rows:
            OfAll.rows += 1
            made.append({"n": row["n"], "number": OfAll.rows})
        return made, {"rows": 0}


class Begun:
    segments = 0

    def process(self, state, rows):
        if state is None:
            Begun.segments += 1
        number = state["rows"] if state else Begun.segments
        return [{"n": row["n"], "number": number} for row in rows], {"rows": number}
"""
_FILES, _DAY = 9, "2026-03-01T"
_HONEST = (
    "from pyspark.sql import functions as F\n\n\ndef shape(df):\n    return "
    "df.withColumn('size', F.length('g'))\n"
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


def _project(
    home: Path, pipeline: dict[str, Any], file: str, code: str, rows: Sequence[Sequence[Row]]
) -> None:
    (home / "dags" / "pipelines").mkdir(parents=True)
    (home / "dags" / "pipelines" / "shop.yaml").write_text(json.dumps(pipeline))
    path = home / "jobs" / file
    path.parent.mkdir(parents=True)
    path.write_text(code)
    (home / "in").mkdir()
    for number, some in enumerate(rows):
        (home / "in" / f"{number}.json").write_text("".join(json.dumps(row) + "\n" for row in some))


def _changing() -> Iterator[list[Row]]:
    """Yield the rows of files: keys that change and go, with some that are refused."""
    draw = Random(1)
    for number in range(_FILES):
        yield [
            {
                "id": f"k{draw.randrange(30)}",
                "n": number * 100 + at,
                "op": draw.choice(("u", "u", "u", "d", "x")),
                "g": draw.choice("ab"),
                "at": f"2026-03-01T{draw.randrange(24):02}:00:00Z",
            }
            for at in range(8)
        ]


def _begun_elsewhere() -> Iterator[list[Row]]:
    """Yield the rows of files: each has one of each group, of which each begins in a file of its
    own.

    So whatever files come after others, a group whose first row is not among them goes on from a
    row that it had. By `day`, which is one, each group begins anew.
    """
    for number in range(_FILES):
        minutes = [0 if group == number else 1 + number for group in range(_FILES)]
        yield [
            {
                "id": f"{number}-{group}",
                "n": number,
                "g": f"g{group}",
                "at": f"{_DAY}00:{at:02}:00Z",
                "day": f"{_DAY}00:00:00Z",
            }
            for group, at in enumerate(minutes)
        ]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("transform", [_HONEST, _BY_ORDER], ids=["honest", "by-order"])
def test_a_transform_that_depends_on_order_is_found(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    transform: str,
) -> None:
    monkeypatch.setenv("DRAINDOWN_MASTER", "local[2]")
    home, scratch = tmp_path / "project", tmp_path / "scratch"
    _project(home, _PIPELINE, "transforms/orders.py", transform, list(_changing()))
    words = ["--root", str(home), "drill", "shuffle", "shop/hourly", "--seeds", "1"]
    code = main([*words, "--scratch", str(scratch), "--json"])
    said = json.loads(capsys.readouterr().out)
    (order,) = said["orders"]
    assert order["failed"] == "" and said["wrong"] == said["unlooked"] == [], said
    assert "its driver was killed in batch" in order["kills"]["orders"]
    assert order["slices"]["orders"] != [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    if transform == _HONEST:
        assert code == 0 and said["held"] and order["differences"] == [] and not scratch.exists(), (
            said
        )
        return
    assert code == 1 and not said["held"]
    first = order["differences"][0]
    assert (first["flow"], first["what"]) == ("orders", "table") and first["key"].startswith("id k")
    assert first["detail"].startswith("size is ") and first["control"].startswith("slice ")
    assert first["shuffled"].startswith("slice ") and not (home / "lake").exists()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_processor_that_keeps_something_in_its_class_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found for any seed.

    In the last round folds go on from states, for which see `_begun_elsewhere`. There `ByKey`
    counts from 1 again, and `OfAll` never counts up to the number of all rows. `Begun` numbers all
    keys anew in each batch, as they come: in the control the greatest of a partition is last, in
    the copy it is first.
    """
    monkeypatch.setenv("DRAINDOWN_MASTER", "local[2]")
    home, scratch = tmp_path / "project", tmp_path / "scratch"
    _project(home, _FOLDED, "processors/numbers.py", _NUMBERS, list(_begun_elsewhere()))
    words = ["--root", str(home), "drill", "shuffle", "shop", "--seeds", "1"]
    exit_code = main([*words, "--scratch", str(scratch), "--json"])
    said = json.loads(capsys.readouterr().out)
    (order,) = said["orders"]
    assert order["failed"] == "" and said["wrong"] == said["unlooked"] == [], said
    assert exit_code == 1 and not said["held"]
    _ran_in_rounds(order, _FOLDED, scratch / "seed-1")
    found = {
        one["flow"]: one for one in reversed(order["differences"]) if one["key"].startswith("g g")
    }
    assert set(found) == {name.lower() for name in _FOLDS if name != "Kept"}, order["differences"]
    for one in found.values():
        assert "number is " in one["detail"] and one["control"].startswith("slice 1 ("), one
        assert one["shuffled"].startswith("slice "), one


@pytest.mark.long
@pytest.mark.timeout(900)
def test_derived_flows_of_all_kinds_hold_though_they_go_on_round_by_round(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAINDOWN_MASTER", "local[2]")
    home, scratch = tmp_path / "project", tmp_path / "scratch"
    _project(home, _KINDS, "processors/numbers.py", _NUMBERS, list(_begun_elsewhere()))
    words = [
        "--root",
        str(home),
        "drill",
        "shuffle",
        "shop",
        "--seeds",
        "1",
        "--keep",
    ]
    exit_code = main([*words, "--scratch", str(scratch), "--json"])
    said = json.loads(capsys.readouterr().out)
    (order,) = said["orders"]
    assert exit_code == 0 and order["held"] and said["wrong"] == said["unlooked"] == [], said
    assert _ran_in_rounds(order, _KINDS, scratch / "seed-1") == set(KINDS)


def _ran_in_rounds(order: dict[str, Any], pipeline: dict[str, Any], home: Path) -> set[str]:
    """Return the kinds of the derived flows of a copy, each of which had a batch in each round."""
    kinds = set[str]()
    numbers = {len(parts) for parts in order["rounds"].values()}
    assert len(numbers) == 1 and numbers <= {3, 4}
    spec = PipelineSpec.model_validate({**pipeline, "lake": str(home / "lake")})
    for name in spec.graph.order:
        declared = spec.declared(name)
        if isinstance(declared, DerivedFlow):
            rows = ledger_table.recent(spec.layout(name), 100)
            assert [row.run_id for row in rows] == [f"round-{at + 1}" for at in range(*numbers)], (
                name
            )
            kinds.add(declared.kind)
        else:
            parts = order["rounds"][name]
            assert min(parts) >= 1 and sum(parts) == len(order["slices"][name])
    return kinds
