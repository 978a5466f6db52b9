"""A proof finds every planted falsehood by its key, and an untouched table proves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from math import inf, nan
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake

from draindown.cli import auditing
from draindown.cli.program import main
from draindown.config.derived import DerivedFlow
from draindown.config.models import PipelineSpec
from draindown.doctor.examination import examine
from draindown.lake.table import Table
from draindown.pages import overview
from draindown.proof.certificate import Certificate
from draindown.proof.compare import prove, statement
from draindown.proof.windows import measure
from draindown.runs import store
from draindown.runs.report import of
from draindown.runs.request import Request

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
START = datetime(2026, 3, 1, tzinfo=UTC)
MEASURES = {
    "c": "count(*)",
    "s": "SUM(n)",
    "x": "avg(x)",
    "low": "min(n)",
    "u": "count(distinct n)",
}
_TIME = pa.timestamp("us", tz="UTC")
SOURCE = pa.schema([("k", pa.string()), ("at", _TIME), ("n", pa.int32()), ("x", pa.float64())])
RESULT = pa.schema(
    [
        *(
            ("window_start", _TIME),
            ("k", pa.string()),
            ("window_end", _TIME),
            ("c", pa.int64()),
            ("s", pa.int64()),
        ),
        *(("x", pa.float64()), ("low", pa.int32()), ("u", pa.int64()), ("_changed_at", _TIME)),
    ]
)
Row = dict[str, Any]
LANDING = {"source": {"files": "x/*", "format": "json"}, "columns": {"at": "timestamp"}}
WINDOW = {"window": {"time": "at", "size": "1h", "measures": {"c": "count(*)"}}}


def _flow(slide: str | None = None, **measures: str) -> DerivedFlow:
    window = {
        "time": "at",
        "size": "1 hour",
        "slide": slide,
        "group_by": ["k"],
        "measures": measures or MEASURES,
    }
    flow = {"source": {"table": "t"}, "window": window}
    return DerivedFlow.model_validate(flow)


def _rows(draw: Random, number: int = 60) -> list[Row]:
    return [
        {
            "k": draw.choice((None, "", "a", "b")),
            "at": None
            if draw.random() < 0.1
            else START + timedelta(minutes=draw.randint(-300, 300)),
            "n": draw.choice((None, 1, 2, 3)),
            "x": draw.choice((None, 0.1, -2.5, 3.0)),
        }
        for _ in range(number)
    ]


def _query(rows: list[Row], step: int = 3600) -> list[Row]:
    found: dict[tuple[Any, Any], list[Row]] = defaultdict(list)
    for row in rows:
        if row["at"] is not None:
            seconds = int((row["at"] - _EPOCH).total_seconds())
            start = seconds - seconds % step
            while start > seconds - 3600:
                found[_EPOCH + timedelta(seconds=start), row["k"]].append(row)
                start -= step
    return [_result(start, k, own) for (start, k), own in found.items()]


def _result(start: datetime, k: str | None, rows: list[Row]) -> Row:
    numbers, doubles = ([row[name] for row in rows if row[name] is not None] for name in ("n", "x"))
    return {
        "window_start": start,
        "k": k,
        "window_end": start + timedelta(hours=1),
        "c": len(rows),
        "s": sum(numbers) if numbers else None,
        "x": sum(reversed(doubles)) / len(doubles) if doubles else None,
        "low": min(numbers, default=None),
        "u": len(set(numbers)),
        "_changed_at": START,
    }


class Tables:
    """A source table, and the table that claims to be its query."""

    def __init__(self, home: Path, rows: list[Row], results: list[Row]) -> None:
        flows = {"t": LANDING, "d": {"source": {"table": "t"}} | WINDOW}
        self.layout = PipelineSpec.model_validate(
            {"pipeline": "p", "lake": str(home), "flows": flows}
        ).layout("d")
        self.source = str(home / "source")
        write_deltalake(self.source, pa.Table.from_pylist(rows, schema=SOURCE))
        write_deltalake(
            self.layout.tables.target.path, pa.Table.from_pylist(results, schema=RESULT)
        )

    def prove(
        self, flow: DerivedFlow, version: int | None = None, share: float = 1.0
    ) -> Certificate:
        return prove(
            self.layout, flow, [Table(self.source, version)], self.layout.tables.target, share
        )


@pytest.mark.parametrize(
    ("slide", "step"), [(None, 3600), ("20 minutes", 1200), ("25 minutes", 1500)]
)
def test_an_untouched_table_proves(tmp_path: Path, slide: str | None, step: int) -> None:
    rows = _rows(Random(step))
    found = Tables(tmp_path, rows, _query(rows, step)).prove(_flow(slide))
    assert found.holds and found.expected == found.found == len(_query(rows, step)) > 5
    assert (
        found.engine.startswith("duckdb ")
        and found.sources[0].version == 0
        and found.as_dict()["holds"]
    )


def _changed(name: str, change: Callable[[Any], Any]) -> Callable[[list[Row]], Row]:
    def plant(rows: list[Row]) -> Row:
        row = next(row for row in rows if row[name] is not None)
        row[name] = change(row[name])
        return row

    return plant


def _missing(rows: list[Row]) -> Row:
    return rows.pop(3)


def _doubled(rows: list[Row]) -> Row:
    rows.append(rows[2])
    return rows[2]


def _invented(rows: list[Row]) -> Row:
    rows.append(rows[0] | {"k": "z"})
    return rows[-1]


def _late_by_a_window(rows: list[Row]) -> Row:
    rows[4]["window_start"] += timedelta(days=9)
    return rows[4]


def _nulled_group(rows: list[Row]) -> Row:
    row = next(row for row in rows if row["k"] == "")
    row["k"] = "null"
    return row


FALSEHOODS: dict[str, tuple[Callable[[list[Row]], Row], str, str | None]] = {
    "row missing": (_missing, "missing", None),
    "row doubled": (_doubled, "doubled", None),
    "row invented": (_invented, "unexpected", None),
    "window off by days": (_late_by_a_window, "unexpected", None),
    "end off by one second": (
        _changed("window_end", lambda value: value + timedelta(seconds=1)),
        "wrong",
        "window_end",
    ),
    "group renamed": (_nulled_group, "unexpected", None),
    "count off by one": (_changed("c", lambda value: value + 1), "wrong", "c"),
    "wrong sum": (_changed("s", lambda value: value - 1), "wrong", "s"),
    "sum lost": (_changed("s", lambda _: None), "wrong", "s"),
    "average a little off": (_changed("x", lambda value: value * (1 + 1e-8)), "wrong", "x"),
    "wrong minimum": (_changed("low", lambda value: value + 7), "wrong", "low"),
    "wrong distinct count": (_changed("u", lambda value: value + 1), "wrong", "u"),
}


@pytest.mark.parametrize("planted", FALSEHOODS)
def test_a_planted_falsehood_is_found_by_its_key(tmp_path: Path, planted: str) -> None:
    plant, what, column = FALSEHOODS[planted]
    rows = _rows(Random(planted))
    results = _query(rows)
    row = plant(results)
    found = Tables(tmp_path, rows, results).prove(_flow())
    assert not found.holds and found.differing == (
        2 if what == "unexpected" and planted != "row invented" else 1
    )
    key = {"window_start": row["window_start"].isoformat(), "k": row["k"]}
    (one,) = [one for one in found.falsehoods if one.key == key and one.what == what][:1]
    assert set(one.columns) == ({column} if column else set())
    assert len(found.falsehoods) == found.differing, "each key once"
    assert what in str(found) and found.as_dict()["differing"] == found.differing


def test_a_stale_table_is_found(tmp_path: Path) -> None:
    rows = _rows(Random(1))
    tables = Tables(tmp_path, rows, _query(rows))
    write_deltalake(
        tables.source,
        pa.Table.from_pylist([{"k": "a", "at": START, "n": 1}], schema=SOURCE),
        mode="append",
    )
    assert tables.prove(_flow(), version=0).holds, "the table is that of version 0"
    stale = tables.prove(_flow())
    assert not stale.holds and {one.key["k"] for one in stale.falsehoods} == {"a"}


def test_a_sample_compares_its_share_of_the_keys(tmp_path: Path) -> None:
    rows = _rows(Random(2), 400)
    tables = Tables(tmp_path, rows, _query(rows))
    whole, part = tables.prove(_flow()), tables.prove(_flow(), share=0.5)
    assert part.holds and 0 < part.found < whole.found and part.digest == whole.digest


def test_the_tolerance_is_that_of_the_order_of_a_sum(tmp_path: Path) -> None:
    rows = _rows(Random(3))
    results = _query(rows)
    for row in results:
        row["x"] = row["x"] and row["x"] * (1 + 1e-12)
    assert Tables(tmp_path, rows, results).prove(_flow()).holds


@pytest.mark.parametrize("odd", [inf, -inf, nan])
def test_no_number_is_near_infinity_or_nan(tmp_path: Path, odd: float) -> None:
    rows = _rows(Random(5))
    results = _query(rows)
    row = next(row for row in results if row["x"] is not None)
    expected, row["x"] = row["x"], odd
    (found,) = Tables(tmp_path, rows, results).prove(_flow()).falsehoods
    assert set(found.columns) == {"x"} and found.columns["x"][0] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("count(*)", "count(*)"),
        ("count( distinct n )", 'count(distinct "n")'),
        ("Sum(N)", 'sum("n")'),
        ("mean(x)", 'avg("x")'),
        ("max(`k`)", 'max("k")'),
        ("sum(d)", 'sum("d")'),
        ("avg(d)", None),
        ("count(distinct x)", None),
        ("count(distinct *)", None),
        ("sum(n + 1)", None),
        ("sum(k)", None),
        ("sum(missing)", None),
        ("stddev(n)", None),
        ("sum(n) filter (where n > 1)", None),
    ],
)
def test_only_measures_of_certain_meaning_are_translated(text: str, expected: str | None) -> None:
    assert (
        measure(text, {"n": "integer", "x": "double", "k": "string", "d": "decimal(10,2)"})
        == expected
    )


def test_a_flow_with_another_measure_needs_spark(tmp_path: Path) -> None:
    tables = Tables(tmp_path, _rows(Random(4)), [])
    assert statement(_flow(c="stddev(n)"), [Table(tables.source)]) is None
    assert statement(_flow(c="count(*)"), [Table(tables.source)]) is not None


def test_the_newest_certificate_is_named_by_report_page_and_doctor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = _rows(Random(4))
    tables = Tables(tmp_path, rows, _query(rows))
    pipelines = tmp_path / "dags" / "pipelines"
    pipelines.mkdir(parents=True)
    document = {
        "pipeline": "p",
        "lake": str(tmp_path),
        "flows": {"t": LANDING, "d": {"source": {"table": "t"}} | WINDOW},
    }
    (pipelines / "p.yaml").write_text(yaml.safe_dump(document))
    spec = PipelineSpec.model_validate(document)
    request = Request(spec=spec, flow="d", step="plan", run_id="r", root=str(tmp_path))
    store.write(tables.layout, of(request, START, "idle"))

    def typed(*words: str) -> tuple[int, str]:
        code = main(["--root", str(tmp_path), *words])
        return code, capsys.readouterr().out

    def told() -> tuple[str, str, str, list[str]]:
        """The lines about a proof in report and page, doctor's line, and the codes of what is
        wrong.
        """
        (view,) = (one for one in overview.flows(pipelines, tmp_path) if one.flow == "d")
        assert view.proven in overview.render([view])
        report = next(
            (line for line in typed("report", "p")[1].splitlines() if line.startswith("proof")), ""
        )
        health = examine(request)
        return (
            report,
            view.proven,
            health.looked["proof"],
            [one.code for one in health.symptoms if one.level == "wrong"],
        )

    assert told()[:3] == ("", "", "never proven")
    monkeypatch.setattr(auditing, "_prove", lambda *_: tables.prove(_flow()))
    assert typed("audit", "p/d")[0] == 0
    certificate = tables.prove(_flow())
    report, page, health, wrong = told()
    for line in (report, page, health):
        assert (
            "holds for version 0" in line
            and certificate.digest in line
            and certificate.engine in line
        )
    assert "proof-failed" not in wrong

    write_deltalake(
        tables.layout.tables.target.path,
        pa.Table.from_pylist(_query(rows)[1:], schema=RESULT),
        mode="overwrite",
    )
    assert typed("audit", "p/d")[0] == 1
    report, page, health, wrong = told()
    for line in (report, page, health):
        assert "DOES NOT HOLD, 1 key differs" in line and "for version 1" in line
    assert "proof-failed" in wrong
    write_deltalake(
        tables.layout.tables.target.path,
        pa.Table.from_pylist(_query(rows), schema=RESULT),
        mode="overwrite",
    )
    assert "proof-failed" not in told()[3], "it was about another version"
    (symptom,) = (one for one in examine(request).symptoms if one.code.startswith("proof-"))
    assert (symptom.code, symptom.level) == (
        "proof-outdated",
        "note",
    ) and "version 2" in symptom.found
    assert typed("audit", "p/d")[0] == 0
    assert not any(one.code.startswith("proof-") for one in examine(request).symptoms)
