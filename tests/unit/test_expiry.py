"""What a drain leaves to the next run, held against when the source deletes it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from draindown.base.errors import TerminalError
from draindown.config.models import PipelineSpec
from draindown.config.schedule import PRESETS, next_time
from draindown.planning.expiry import refuse_expiring
from draindown.runs.request import Request
from draindown.sources.kafka import retention
from draindown.sources.kafka.retention import Policy
from draindown.sources.port import Look

NOW = datetime(2026, 3, 1, 10, 7, tzinfo=UTC)
NEXT = datetime(2026, 3, 1, 10, 15, tzinfo=UTC)


def request(tmp_path: Path, **more: Any) -> Request:
    flow = {
        "source": {"files": "landing/*.json", "format": "json"},
        "columns": {"n": "int"},
        "target": {},
    }
    spec = PipelineSpec.model_validate(
        {"pipeline": "p", "lake": str(tmp_path), "flows": {"f": flow}, **more}
    )
    return Request(spec=spec, flow="f", step="drain", run_id="r", root=str(tmp_path))


def left(expires: datetime | None, units: int = 3) -> Look:
    at = None if expires is None else expires.timestamp()
    return Look(unit="record", units=units, bytes=1, oldest=None, expires=at)


def test_what_is_deleted_before_the_next_run_is_red(tmp_path: Path) -> None:
    asked = request(tmp_path, schedule="*/15 * * * *")
    with pytest.raises(TerminalError) as found:
        refuse_expiring(asked, left(NEXT), NOW)
    assert found.value.code == "backlog-expires"
    assert "10:15" in found.value.tried and "3 records" in found.value.tried


@pytest.mark.parametrize(
    ("schedule", "look"),
    [
        ("*/15 * * * *", left(NEXT + timedelta(seconds=1))),  # it is read in time
        ("*/15 * * * *", left(None)),  # it is kept for ever
        ("*/15 * * * *", left(NOW, units=0)),  # nothing is left
        (None, left(NOW)),  # nobody knows when the next run is
    ],
)
def test_what_is_read_in_time_is_not(tmp_path: Path, schedule: str | None, look: Look) -> None:
    refuse_expiring(request(tmp_path, schedule=schedule), look, NOW)


@pytest.mark.parametrize("preset", PRESETS)
def test_each_preset_has_a_next_time(preset: str) -> None:
    assert NOW < next_time(preset, NOW) <= NOW + timedelta(days=366)


def test_the_next_time_is_in_utc_whatever_the_zone_of_the_clock() -> None:
    berlin = NOW.astimezone(tz=None)
    assert next_time("*/15 * * * *", berlin) == NEXT


def test_records_expire_by_their_own_time_where_a_topic_deletes() -> None:
    hour = Policy(compacted=False, deleted=True, retention_ms=3_600_000, retention_bytes=None)
    policies = {
        "hour": hour,
        "ever": Policy(False, True, None, None),
        "compacted": Policy(True, False, 3_600_000, None),
    }
    oldest = {
        ("hour", 0): NOW,
        ("hour", 1): NOW - timedelta(minutes=5),
        ("ever", 0): NOW - timedelta(days=900),
    }
    oldest["compacted", 0] = NOW - timedelta(days=900)
    assert retention.expires(oldest, policies) == (NOW + timedelta(minutes=55)).timestamp()
    assert retention.expires({}, policies) is None
