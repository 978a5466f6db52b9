"""What doctor says of a flow of Kafka: the brokers, what they will delete, and the raw records in
the lake.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from draindown.base.clock import now
from draindown.base.errors import TransientError
from draindown.doctor.examination import examine
from draindown.doctor.model import Examination
from draindown.lake import delta
from draindown.runs.request import Request
from draindown.sources.kafka.client import Sample, Seen
from draindown.sources.kafka.offsets import Span
from draindown.sources.kafka.source import Kafka
from tests.flowfiles import AT, checkpoint
from tests.tables.test_audit_records import SLICES, SOURCE, World
from tests.tables.test_kafka_source import Brokers

HELD = {"t": ("x", [[0, 6], [0, 9]])}
"""What the brokers hold in peace: all that was read, and nothing more."""


class Away(Brokers):
    """Brokers that nobody reaches."""

    def look(self) -> Seen:
        raise TransientError(
            "kafka-unreachable", tried="look", found="no answer", next="draindown status"
        )


class Full(Brokers):
    """Brokers whose unread records were written an hour ago."""

    def sample(self, spans: list[Span]) -> Sample:  # type: ignore[override]
        return Sample(
            {span.place: now() - timedelta(hours=1) for span in spans if span.size}, 100.0
        )


def drained(root: Path, **more: Any) -> Request:
    """The request of a flow that read both of its slices."""
    asked = World(root, source=more.pop("source", {})).write()
    checkpoint(asked, 1, offsets=2, commits=2)
    return asked.model_copy(update={"spec": asked.spec.model_copy(update=more)})


def examined(asked: Request, brokers: Brokers, patch: pytest.MonkeyPatch) -> Examination:
    patch.setattr(Kafka, "client", brokers)
    patch.setattr("draindown.sources.kafka.source.find_spec", lambda _: True)
    return examine(asked)


def codes(health: Examination, level: str) -> set[str]:
    return {one.code for one in health.symptoms if one.level == level}


def test_a_flow_whose_brokers_hold_all_is_healthy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = examined(drained(tmp_path), Brokers(HELD), monkeypatch)
    assert codes(found, "wrong") == set() and codes(found, "note") == {
        "quarantine-open",
        "unpublished",
    }
    assert found.looked["source"] == "0 records in 2 partitions wait"
    assert "kept for 30 d" in found.looked["raw records"]
    assert found.unlooked == []


@pytest.mark.parametrize(
    ("brokers", "wanted"),
    [
        (Brokers({"t": ("x", [[8, 12], [0, 9]])}), {"offsets-lost"}),
        (Brokers({"t": ("y", [[0, 6], [0, 9]])}), {"topic-recreated"}),
        (Brokers({"t": ("x", [[0, 3], [0, 9]])}), {"log-truncated"}),
        (Brokers({}), {"topic-gone"}),
        (Away(), {"kafka-unreachable"}),
    ],
    ids=["aged out", "created again", "truncated", "gone", "away"],
)
def test_what_the_brokers_do_not_hold_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, brokers: Brokers, wanted: set[str]
) -> None:
    found = examined(drained(tmp_path), brokers, monkeypatch)
    assert {one.code for one in found.symptoms if one.part == "source"} == wanted
    assert found.exit == 1 and all(one.next for one in found.symptoms)


def test_pinned_offsets_that_are_gone_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = World(tmp_path).write()
    checkpoint(asked, 1, offsets=1, commits=1)
    delta.delete(asked.layout.tables.raw, "input = 't/0'")
    found = examined(asked, Brokers({"t": ("x", [[6, 6], [0, 9]])}), monkeypatch)
    (lost,) = [one for one in found.symptoms if one.code == "input-lost"]
    assert "t/0:4-6" in lost.found and lost.next.startswith("draindown input list p")


@pytest.mark.parametrize(
    ("schedule", "keeps", "wanted"),
    [
        ("@daily", timedelta(hours=2), {"retention-below-schedule"}),
        ("*/15 * * * *", timedelta(hours=1), {"backlog-expires"}),
        ("@daily", timedelta(days=7), set()),
        (None, timedelta(hours=2), set()),
    ],
)
def test_retention_is_held_against_the_schedule(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    schedule: str | None,
    keeps: timedelta,
    wanted: set[str],
) -> None:
    at = now().replace(minute=1)  # runs are never a moment away
    monkeypatch.setattr("draindown.doctor.source.now", lambda: at)
    monkeypatch.setitem(globals(), "now", lambda: at)
    brokers = Full(
        {"t": ("x", [[0, 20], [0, 9]])}, retention_ms=round(keeps.total_seconds() * 1000)
    )
    found = examined(drained(tmp_path, schedule=schedule), brokers, monkeypatch)
    assert codes(found, "wrong") == wanted
    assert ("source-retention" in codes(found, "note")) == (keeps < timedelta(hours=1.4))
    assert "14 records in 2 partitions wait" in found.looked["source"]


Damage = Callable[[Request], object]


def _file_gone(asked: Request) -> None:
    next(Path(asked.layout.tables.raw.path).rglob("*.parquet")).unlink()


@pytest.mark.parametrize(
    ("damage", "brokers", "wrong", "noted"),
    [
        (_file_gone, Brokers(HELD), "raw-files-gone", ""),
        (
            lambda asked: delta.delete(asked.layout.tables.raw, "input = 't/1'"),
            Brokers({"t": ("x", [[0, 6], [8, 9]])}),
            "",
            "reset-lacks-input",
        ),
        (
            lambda asked: delta.delete(asked.layout.tables.raw, "input = 't/1'"),
            Brokers(HELD),
            "",
            "",
        ),
        (lambda _: None, Brokers({"t": ("x", [[0, 6]])}), "", "reset-lacks-input"),
    ],
    ids=[
        "file",
        "range that the topic lost",
        "range that the topic has",
        "range of a partition that is gone",
    ],
)
def test_raw_records_are_there_for_a_reset_or_it_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Damage,
    brokers: Brokers,
    wrong: str,
    noted: str,
) -> None:
    asked = drained(tmp_path)
    damage(asked)
    found = examined(asked, brokers, monkeypatch)
    about = [one for one in found.symptoms if one.part == "raw records"]
    assert [one.code for one in about] == [code for code in (wrong, noted) if code]
    assert not noted or (
        "t/1:7-9" in about[0].found and about[0].next.startswith("draindown rebuild p/f ")
    )


def test_a_range_that_was_read_on_a_day_that_is_kept_and_is_not_there_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # both batches ran on the first of January, raw records reach back to the day before
    asked = drained(tmp_path, source={"kafka": SOURCE["kafka"] | {"keep_raw": "36500 days"}})
    delta.delete(asked.layout.tables.raw, "input = 't/1'")
    monkeypatch.setattr("draindown.doctor.source._FIRST_DAYS", timedelta(0))
    found = examined(asked, Brokers(HELD), monkeypatch)
    (told,) = [one for one in found.symptoms if one.code == "raw-incomplete"]
    assert "t/1:7-9" in told.found


@pytest.mark.parametrize(("gone", "told"), [("input = 't/1'", []), ('"from" = 4', ["t/0:4-6"])])
def test_a_range_whose_day_is_over_does_not_lack_because_a_later_generation_read_it_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: str, told: list[str]
) -> None:
    """Raw records keep the day on which they were read first: generation 1, ten days before the
    oldest that is kept.
    """
    world = World(
        tmp_path, keyed=True, source={"kafka": SOURCE["kafka"] | {"keep_raw": "36500 days"}}
    )
    world.slices = [SLICES[0], [Span("t", 0, "x", 0, 6), Span("t", 1, "x", 7, 9)]]
    world.generations, world.cuts = [1, 2], [1, 1]
    world.started = [AT - timedelta(days=10), AT + timedelta(days=2)]
    asked = world.write()
    checkpoint(asked, 2, offsets=1, commits=1)
    delta.delete(asked.layout.tables.raw, gone)
    found = examined(asked, Brokers(HELD), monkeypatch)
    noted = [one.found for one in found.symptoms if one.code == "raw-incomplete"]
    assert len(noted) == len(told) and all(
        name in text for name, text in zip(told, noted, strict=True)
    )


def test_without_a_client_nothing_is_said_of_the_brokers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draindown.sources.kafka.source.find_spec", lambda _: None)
    found = examine(drained(tmp_path))
    assert any("confluent-kafka" in one for one in found.unlooked) and found.exit == 75
    assert found.looked["source"] == "out of reach from here"
