"""`draindown why`: the places that it prints, read raw by this test, are those of the row or of its
absence.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from draindown.cli.program import main
from draindown.provenance.why import Question, why
from tests.landed_lake import LandedLake, Told
from tests.model import newest
from tests.tables.test_proof_races import FEED, NOW, Hourly

_START = datetime(2026, 3, 1, tzinfo=UTC)
Ask = Callable[..., Any]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    def asked(lake: LandedLake, *words: str, code: int = 0) -> Any:
        found = main(["--root", str(lake.home), "why", *words, "--json"])
        said = capsys.readouterr()
        assert found == code, said.err
        return json.loads(said.out) if code == 0 else said.err

    return asked


def _line(draw: Random, key: str) -> str:
    if draw.random() < 0.04:
        return f'{{"id": "{key}", broken'
    at = (
        (_START + timedelta(minutes=draw.randrange(600))).isoformat()
        if draw.random() < 0.95
        else None
    )
    record = {"id": key, "n": draw.randrange(12), "op": "d" if draw.random() < 0.12 else "u"}
    record |= {"g": draw.choice("ab"), "at": at, "v": draw.randrange(3)}
    if draw.random() < 0.06:
        record["n"] = "many"
    return json.dumps(record)


def _why(
    lake: LandedLake, flow: str, *, every: bool = False, limit: int = 20, **key: str | None
) -> list[dict[str, Any]]:
    """The answer as the command gives it, without reading the pipeline's file again."""
    asked = Question(
        lake.spec, flow, lake.home, key, limit, every, lambda _: lake.spec, lambda _: None
    )
    return [json.loads(json.dumps(one.as_dict())) for one in why(asked)]


def _random(home: Path, seed: int) -> LandedLake:
    """Eight batches over keys of which some are only refused, some deleted, some never seen."""
    lake, draw = LandedLake(home), Random(seed)
    for number in range(8):
        keys = [f"key-{draw.randrange(150):04}" for _ in range(90)] + [
            f"once-{number}-{one}" for one in range(6)
        ]
        lines = [_line(draw, key) for key in keys]
        lines += [lines[draw.randrange(len(lines))] for _ in range(6)] + ["", "  "]
        draw.shuffle(lines)
        lake.drain(lines[: len(lines) // 2], lines[len(lines) // 2 :])
    lake.deliver([json.dumps({"id": "waits", "n": 1})])
    return lake


def _raw(place: Any) -> str:
    return Path(place["input"]).read_text().split("\n")[place["position"] - 1]


def _of(lake: LandedLake, key: str) -> list[Told]:
    return [one for one in lake.told if one.change is not None and one.change.key == (key,)]


@pytest.mark.full
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_places_of_random_keys_are_those_of_the_row_or_of_its_absence(
    tmp_path: Path, seed: int
) -> None:
    lake = _random(tmp_path, seed)
    keys = sorted({str(one.record["id"]) for one in lake.told if one.record} | {"nobody", "waits"})
    refused = [key for key in keys if key.startswith("once") and not _of(lake, key)]
    chosen = [*Random(seed).sample(keys, 50), *refused, "nobody", "waits"]
    states = set()
    for key in chosen:
        (found,) = _why(lake, "f", id=key)
        states.add(found["state"])
        for place in found["records"]:
            assert place["raw"] == _raw(place), "the text is that of the file"
        _held(lake, key, found)
    assert states == {"landed", "deleted", "quarantined", "never-seen", "waiting"}


def _held(lake: LandedLake, key: str, found: Any) -> None:
    """Hold an answer against the history that the lake was made from."""
    changes = _of(lake, key)
    last = newest(one.change for one in changes if one.change)
    if last is None or last.delete:
        assert found["row"] is None and found["state"] != "landed"
        if last is not None:
            (deleted,) = [one for one in found["records"] if one["fate"] == "deleted"][-1:]
            assert (
                json.loads(_raw(deleted))["op"] == "d"
                and json.loads(_raw(deleted))["n"] == last.sequence
            )
        return
    (won,) = [one for one in found["records"] if one["fate"] == "applied"]
    record = json.loads(_raw(won))
    row = lake.rows[key]
    assert {name: record[name] for name in ("id", "n", "op", "g", "v")} == {
        name: row[name] for name in ("id", "n", "op", "g", "v")
    }
    batch = found["batch"]["number"]
    mine = [one for one in changes if one.batch == batch]
    accepted = {(str(one.file), one.line) for one in mine}
    lost = [one for one in found["records"] if one["fate"] in ("superseded", "duplicate")]
    assert {(one["input"], one["position"]) for one in [won, *lost]} == accepted
    assert (
        sum(one["fate"] == "duplicate" for one in lost)
        == sum(one.change == last for one in mine) - 1
    )
    assert {one.rpartition(":")[0] for one in found["batch"]["read"]} == {
        str(one.file) for one in lake.told if one.batch == batch
    }


@pytest.mark.full
def test_all_names_the_records_of_every_batch(tmp_path: Path) -> None:
    lake = _random(tmp_path, 5)
    for key in list(lake.rows)[:12]:
        (found,) = _why(lake, "f", every=True, id=key)
        told = {
            (one["input"], one["position"])
            for one in found["records"]
            if one["fate"] != "quarantined"
        }
        assert told == {(str(one.file), one.line) for one in _of(lake, key)}
        refused = [one for one in found["records"] if one["fate"] == "quarantined"]
        assert {_raw(one) for one in refused} == {
            _raw({"input": str(one.file), "position": one.line})
            for one in lake.told
            if one.change is None and key in one.file.read_text().splitlines()[one.line - 1]
        }


def test_what_is_gone_is_said(tmp_path: Path, ask: Ask) -> None:
    lake = LandedLake(tmp_path)
    lake.drain([json.dumps({"id": "a", "n": 1})])
    lake.drain([json.dumps({"id": "b", "n": 1})])
    (tmp_path / "in" / "001.json").unlink()
    (tmp_path / "in" / "002.json").write_text(json.dumps({"id": "c", "n": 1}) + "\n")
    (gone,) = ask(lake, "f", "--key", "a")["rows"]
    assert gone["state"] == "landed" and gone["records"] == [] and "001.json" in gone["gone"][0]
    assert gone["batch"]["number"] == 0 and "can't be read" in gone["gone"][0]
    assert "a batch read it last at 2026-01-01 12:00 UTC" in gone["gone"][0]
    (changed,) = ask(lake, "f", "--key", "id=b")["rows"]
    assert "other bytes" in changed["gone"][0] and changed["records"] == []
    (unknown,) = ask(lake, "f", "--key", "c")["rows"]
    assert unknown["state"] == "unknown" and len(unknown["gone"]) == 2, (
        "nothing is said that nobody can know"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nothing", "--key", "a"), "tables are p/f"),
        (("f", "--key", "x=1", "--key", "id=2"), "columns are id"),
        (("f", "--key", ""), "it is empty"),
    ],
)
def test_what_cant_be_asked_is_named(
    tmp_path: Path, ask: Ask, words: tuple[str, ...], said: str
) -> None:
    lake = LandedLake(tmp_path)
    lake.drain([json.dumps({"id": "a", "n": 1})])
    assert said in " ".join(ask(lake, *words, code=2).split())


@pytest.mark.parametrize(("text", "code"), [("2.6", 2), ("3.0", 0), ("3", 0), ("three", 2)])
def test_a_number_that_a_key_can_t_be_is_not_taken_for_another(
    tmp_path: Path, ask: Ask, text: str, code: int
) -> None:
    lake = LandedLake(
        tmp_path,
        g={"source": {"table": "f"}, "deduplicate": {"keys": ["n"], "sequence_by": ["id"]}},
    )
    lake.drain([json.dumps({"id": "a", "n": 3})])
    held = {
        "id": ["a"],
        "n": pa.array([3], pa.int32()),
        "_changed_at": pa.array([NOW], pa.timestamp("us", "UTC")),
    }
    write_deltalake(lake.spec.layout("g").tables.target.path, pa.table(held))
    said = ask(lake, "g", "--key", text, code=code)
    assert code == 0 or text in said


def test_a_derived_table_that_no_run_has_made_yet_is_said_to_be_none(
    tmp_path: Path, ask: Ask
) -> None:
    lake = LandedLake(
        tmp_path,
        g={"source": {"table": "f"}, "deduplicate": {"keys": ["n"], "sequence_by": ["id"]}},
    )
    lake.drain([json.dumps({"id": "a", "n": 3})])
    said = ask(lake, "g", "--key", "3", code=78)
    assert "nothing-to-prove" in said and "draindown --root" in said and "run p/g" in said


class _Stamped(Hourly):
    """Its source has the stamps that a drain writes."""

    def write(self, rows: Any, **_: Any) -> None:
        found = [
            {"id": hour, "at": NOW + timedelta(hours=hour), "_changed_at": NOW} for hour in rows
        ]
        made = None if self.upstream.tables.target.exists else {FEED: "true"}
        write_deltalake(
            self.upstream.tables.target.path,
            pa.Table.from_pylist(found),
            mode="append",
            configuration=made,
        )

    def derive(self, *hours: int) -> None:
        super().derive(*hours)
        log = self.layout.tables.target
        rows, of_batch = (
            log.query("select * from t"),
            {"userMetadata": log.commits(1)[0].user_metadata},
        )
        rows = rows.append_column(
            "_changed_at", pa.array([NOW] * rows.num_rows, pa.timestamp("us", "UTC"))
        )
        batch = Transaction(self.layout.app_id(1, "rows"), self.batches - 1)
        done = CommitProperties(app_transactions=[batch], custom_metadata=of_batch)
        write_deltalake(
            self.layout.tables.target.path,
            rows,
            mode="overwrite",
            schema_mode="overwrite",
            commit_properties=done,
        )

    def why(self, hour: int) -> dict[str, Any]:
        key = {"window_start": (NOW + timedelta(hours=hour)).isoformat()}
        asked = Question(
            self.spec, "d", self.home, key, 20, False, lambda _: self.spec, lambda _: None
        )
        (found,) = why(asked)
        return found.as_dict()


def test_source_rows_are_those_of_the_version_that_was_read(tmp_path: Path) -> None:
    it = _Stamped(tmp_path)
    it.derive(1, 1, 2)
    it.write([1, 1, 1])
    found = it.why(1)
    assert (found["state"], found["number"], len(found["sources"])) == ("derived", {"t": 2}, 2)
    assert not [text for text in found["gone"] if "as they are now" in text]
    assert it.why(7)["state"] == "never-seen"


def test_source_rows_that_vacuum_removed_are_said_to_be_gone(tmp_path: Path) -> None:
    it = _Stamped(tmp_path)
    it.derive(1, 1, 2)
    it.vacuum(it.upstream.tables.target.path)
    found = it.why(1)
    assert found["state"] == "derived" and found["sources"] == []
    assert any("1 file of table t at version 0" in text for text in found["gone"]), found["gone"]
    assert it.why(7)["state"] == "unknown", "nobody can know"
