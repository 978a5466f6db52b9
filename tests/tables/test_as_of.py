"""`draindown as-of`: the rows of a history at any time are those of a plain loop over its
events.
"""

from __future__ import annotations

import json
import re
from contextlib import closing
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from draindown.cli.program import main
from draindown.config.models import PipelineSpec
from draindown.gate import published
from draindown.gate.published import Published
from draindown.history import as_of
from draindown.lake import documents
from draindown.lake.lost_files import lost_files
from tests.folding import Row, fold

_START = datetime(2026, 3, 1, tzinfo=UTC)
_SEQUENCES: dict[str, tuple[pa.DataType, Any]] = {
    "timestamp": (
        pa.timestamp("us", tz="UTC"),
        [_START + timedelta(minutes=at) for at in range(6)],
    ),
    "timestamp_ntz": (pa.timestamp("us"), [datetime(2026, 3, 1, 0, at) for at in range(6)]),
    "date": (pa.date32(), [(_START + timedelta(days=at)).date() for at in range(6)]),
    "bigint": (pa.int64(), list(range(6))),
    "decimal(10,2)": (
        pa.decimal128(10, 2),
        [pa.scalar(at / 2).cast(pa.decimal128(10, 2)).as_py() for at in range(6)],
    ),
    "string": (pa.string(), list("abcdef")),
}


class Project:
    """A project with a history over events, whose table a test writes."""

    def __init__(self, home: Path, kind: str = "timestamp", *, several: bool = False) -> None:
        self.home, self.kind, self.several = home, kind, several
        self.order = ["at", "n"] if several else ["at"]
        landing = {
            "source": {"files": "landing/*", "format": "json"},
            "columns": {"k": "string", "at": kind, "n": "int", "v": "string"},
        }
        target = {
            "keys": ["k"],
            "sequence_by": self.order,
            "stored_as_scd_type": 2,
            "track_history": ["v"],
        }
        flows = {
            "events": landing,
            "d": {"source": {"table": "events"}, "target": target | {"table": "changes"}},
        }
        document = {"pipeline": "p", "lake": str(home / "lake"), "flows": flows}
        path = home / "dags" / "pipelines" / "p.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(document))
        self.layout = PipelineSpec.model_validate(document).layout("d")

    def write(self, events: list[Row], *, publish: bool = True) -> list[Row]:
        """Replace the table by the history of events, and return its rows."""
        rows = fold(events, ["k"], self.order, ["v"])
        made = [
            {**row, "__START_AT": self._made(row["start"]), "__END_AT": self._made(row["end"])}
            for row in rows
        ]
        own = _SEQUENCES[self.kind][0]
        sequence = pa.struct([("at", own), ("n", pa.int32())]) if self.several else own
        fields = {"k": pa.string(), "__START_AT": sequence, "__END_AT": sequence}
        fields |= {
            "at": own,
            "n": pa.int32(),
            "v": pa.string(),
            "_changed_at": pa.timestamp("us", tz="UTC"),
        }
        table = pa.Table.from_pylist(made, schema=pa.schema(fields))
        write_deltalake(self.layout.tables.target.path, table, mode="overwrite")
        log = self.layout.tables.target
        if publish:
            pointer = Published(
                version=log.version,
                table_id=log.id,
                changed_at=None,
                at=_START,
                run_id="r",
                rows=len(rows),
            )
            published.publish(self.layout, pointer)
        return rows

    def _made(self, sequence: tuple[Any, ...] | None) -> Any:
        if sequence is None or not self.several:
            return sequence and sequence[0]
        return dict(zip(self.order, sequence, strict=True))

    def ask(self, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
        code = main(["--root", str(self.home), "as-of", *words])
        said = capsys.readouterr()
        return code, said.out, said.err


def _events(draw: Random, kind: str) -> list[Row]:
    times = _SEQUENCES[kind][1]
    return [
        {
            "k": draw.choice((None, "a", "b", "c'")),
            "at": draw.choice(times),
            "n": draw.randrange(3),
            "v": draw.choice("xy"),
        }
        for _ in range(30)
    ]


def _in_force(rows: list[Row], at: Any, key: str | None = None) -> list[tuple[Any, ...]]:
    """Key and value of each row in force: it began, and what ends it is later, by the first
    sequence column.
    """
    valid = (
        row for row in rows if row["start"][0] <= at and (row["end"] is None or row["end"][0] > at)
    )
    return sorted(((row["k"], row["v"]) for row in valid if key in (None, row["k"])), key=str)


@pytest.mark.parametrize("several", [False, True], ids=["one", "several"])
@pytest.mark.parametrize("kind", _SEQUENCES)
def test_rows_at_each_time_are_those_in_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, several: bool
) -> None:
    it = Project(tmp_path, kind, several=several)
    rows = it.write(_events(Random(kind), kind))
    for at in _SEQUENCES[kind][1]:
        text = at.isoformat() if isinstance(at, datetime) else str(at)
        code, out, err = it.ask(capsys, "changes", text, "--json")
        found = json.loads(out)
        assert code == 0, err
        assert sorted(((row["k"], row["v"]) for row in found["rows"]), key=str) == _in_force(
            rows, at
        )
        _, out, _ = it.ask(capsys, "p/changes", text, "--key", "c'", "--json")
        assert [(row["k"], row["v"]) for row in json.loads(out)["rows"]] == _in_force(
            rows, at, "c'"
        )
    assert 0 < found["number"] == len(found["rows"])


@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz"])
def test_any_year_can_be_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    it, zone = Project(tmp_path, kind), UTC if kind == "timestamp" else None
    years = {1: "a", 1600: "b", 2026: "c", 9999: "d"}
    it.write(
        [
            {"k": "a", "at": datetime(year, 1, 1, tzinfo=zone), "n": 1, "v": v}
            for year, v in years.items()
        ]
    )
    for text, v in (
        ("0001-01-01", "a"),
        ("1677-01-01", "b"),
        ("2263-01-01", "c"),
        ("9999-12-31T23:59:59.999999", "d"),
    ):
        code, out, err = it.ask(capsys, "changes", text, "--json")
        assert code == 0, err
        assert [row["v"] for row in json.loads(out)["rows"]] == [v]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        *(
            ("1.005", []),
            ("1.009", []),
            ("1.01", ["x"]),
            ("1.0199", ["x"]),
            ("1.02", ["y"]),
            ("102e-2", ["y"]),
        ),
        *(
            ("999.99", ["y"]),
            ("999.999", ["y"]),
            ("1000", ["y"]),
            ("1E+30", ["y"]),
            ("-1E+30", []),
            ("1E-30", []),
        ),
        *(("-999.999", []), ("0." + "9" * 60, [])),
    ],
)
def test_a_time_between_two_decimals_is_not_rounded(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    found: list[str],
) -> None:
    monkeypatch.setitem(_SEQUENCES, "decimal(5,2)", (pa.decimal128(5, 2), []))
    it = Project(tmp_path, "decimal(5,2)")
    it.write(
        [{"k": "a", "at": Decimal(at), "n": 1, "v": v} for at, v in (("1.01", "x"), ("1.02", "y"))]
    )
    code, out, err = it.ask(capsys, "changes", "--json", "--", text)
    assert code == 0, err
    assert [row["v"] for row in json.loads(out)["rows"]] == found


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("decimal(5,2)", "1.5", "cast('1.50' as decimal(5,2))"),
        ("decimal(5,2)", "1.505", "null"),
        ("decimal(5,2)", "1000", "null"),
        ("decimal(38,0)", "9" * 38, f"cast('{'9' * 38}' as decimal(38,0))"),
        ("decimal(38,18)", "1e-18", "cast('0.000000000000000001' as decimal(38,18))"),
    ],
)
def test_a_key_is_never_rounded(kind: str, text: str, value: str) -> None:
    assert as_of._value(kind, text, exact=True) == value


def test_what_was_published_of_a_table_that_is_gone_is_no_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    it = Project(tmp_path)
    it.write([{"k": "a", "at": _START, "n": 1, "v": "x"}], publish=False)
    log = it.layout.tables.target
    own = log.commits()[0].timestamp
    for version, committed, table in (
        (9, None, log.id),
        (0, own + 1, log.id),
        (0, None, "another"),
    ):
        pointer = Published(
            version=version,
            table_id=table,
            committed_ms=committed,
            changed_at=None,
            at=_START,
            run_id="r",
            rows=1,
        )
        documents.Document(f"{it.layout.published}/{1:010}.json").write(
            pointer.model_dump(mode="json")
        )
        code, _, err = it.ask(capsys, "changes", "2026-03-01")
        assert (
            code == 78
            and "nothing-published" in err
            and f"version {version} passed a check" in " ".join(err.split())
        )


def test_an_answer_is_of_the_published_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    it = Project(tmp_path)
    code, _, err = it.ask(capsys, "changes", "2026-03-01")
    assert code == 78 and "nothing-published" in err and "draindown --root" in err
    it.write([{"k": "a", "at": _START, "n": 1, "v": "x"}])
    it.write([{"k": "a", "at": _START, "n": 1, "v": "y"}], publish=False)
    code, out, _ = it.ask(capsys, "changes", "2026-03-01", "--limit", "1")
    assert code == 0 and "1 row of version 0" in out and out.splitlines()[-1].split()[-1] == "x"
    assert "0 rows of version 0" in it.ask(capsys, "changes", "2026-02-28")[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("changes", "yesterday"), "'yesterday' is no time such as"),
        (("change", "2026-03-01"), "histories are p/changes"),
        (("events", "2026-03-01"), "table events is no history; histories are p/changes"),
        (("changes", "2026-03-01", "--key", "x=1", "--key", "k=2"), "columns are k"),
        (("changes", "2026-03-01", "--key", ""), "it is empty"),
    ],
)
def test_what_cant_be_asked_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    it = Project(tmp_path)
    it.write([{"k": "a", "at": _START, "n": 1, "v": "x"}])
    code, _, err = it.ask(capsys, *words)
    assert code == 2 and said in " ".join(err.split())


def test_by_arrival_ends_where_the_files_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    it = Project(tmp_path)
    first = {"k": "a", "at": _START, "n": 1, "v": "x"}
    it.write([first])
    it.write([first, {"k": "a", "at": _START + timedelta(hours=1), "n": 1, "v": "y"}])
    commits = {one.version: one.timestamp for one in it.layout.tables.target.commits()}
    moments = {
        version: datetime.fromtimestamp(at / 1000, UTC).isoformat()
        for version, at in commits.items()
    }
    asked = [
        it.ask(capsys, "changes", "--known-at", moments[version], "--json") for version in (0, 1)
    ]
    assert [[row["v"] for row in json.loads(out)["rows"]] for _, out, _ in asked] == [["x"], ["y"]]
    before = datetime.fromtimestamp(commits[0] / 1000 - 1, UTC).isoformat()
    code, _, err = it.ask(capsys, "changes", "--known-at", before)
    assert code == 78 and "history-gone" in err and f"can be answered is {moments[0]}" in err
    DeltaTable(it.layout.tables.target.path).vacuum(
        0, dry_run=False, enforce_retention_duration=False
    )
    code, _, err = it.ask(capsys, "changes", "--known-at", moments[0])
    assert code == 78 and f"can be answered is {moments[1]}" in err and "draindown --root" in err
    _, out, _ = it.ask(capsys, "changes", "--known-at", moments[1], "--json")
    assert [row["v"] for row in json.loads(out)["rows"]] == ["y"]


def test_a_version_whose_deletion_vector_is_gone_is_no_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    it = Project(tmp_path)
    it.write([{"k": "a", "at": _START, "n": 1, "v": "x"}])
    log = Path(it.layout.tables.target.path, "_delta_log")
    lines = [json.loads(one) for one in (log / f"{0:020}.json").read_text().splitlines()]
    file = next(one["add"] for one in lines if "add" in one)
    gone = (
        f"{it.layout.tables.target.path}/deletion_vector_61d16c75-6994-46b7-a15b-8b538852e50e.bin"
    )
    vector = {
        "storageType": "p",
        "pathOrInlineDv": gone,
        "offset": 1,
        "sizeInBytes": 36,
        "cardinality": 1,
    }
    features = ["deletionVectors"]
    at = next(one["commitInfo"]["timestamp"] for one in lines if "commitInfo" in one) + 1000
    actions: list[dict[str, Any]] = [
        {"commitInfo": {"timestamp": at, "operation": "DELETE"}},
        {
            "protocol": {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": features,
                "writerFeatures": features,
            }
        },
        {"remove": {"path": file["path"], "deletionTimestamp": at, "dataChange": True}},
        {"add": {**file, "deletionVector": vector}},
    ]
    (log / f"{1:020}.json").write_text("".join(json.dumps(one) + "\n" for one in actions))
    assert lost_files(it.layout.tables.target) == [gone]
    moment = datetime.fromtimestamp(at / 1000, UTC).isoformat()
    code, _, err = it.ask(capsys, "changes", "--known-at", moment)
    assert code == 78 and "history-gone" in err


def test_the_sql_for_duckdb_in_the_docs_is_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (Path(__file__).parents[2] / "docs" / "pipeline-files.md").read_text()
    table = text.partition("<!-- as of: begin -->")[2].partition("<!-- as of: end -->")[0]
    (sql,) = re.findall(r"^\| DuckDB \| `(.*)` \|$", table, re.MULTILINE)
    it, noon = Project(tmp_path), datetime(2013, 1, 1, 12, tzinfo=UTC)
    times = [noon + timedelta(hours=at) for at in (-1, 0, 1)]
    draw = Random(1)
    events = [
        {"k": draw.choice("abc"), "at": draw.choice(times), "n": 1, "v": draw.choice("xy")}
        for _ in range(9)
    ]
    rows = it.write(events)
    with closing(duckdb.connect()) as db:
        # the extension that reads Delta in DuckDB is not among the packages: its function reads the
        # same rows here
        held = it.layout.tables.target.query("select * from t")
        db.register("held", held)
        db.execute("create macro delta_scan(path) as table select * from held")
        found = db.execute(sql).fetchall()
        names = [one[0] for one in db.description or ()]
    at_k, at_v = names.index("k"), names.index("v")
    assert sorted((row[at_k], row[at_v]) for row in found) == _in_force(rows, noon) != []
