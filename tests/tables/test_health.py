"""What plan, lag, doctor, page and overview say of a flow is what the tables and the input say."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import unquote

import pytest
from deltalake import DeltaTable

from draindown.base.clock import now
from draindown.cli.program import main
from draindown.doctor.examination import examine
from draindown.flow.health import Health
from draindown.gate import published
from draindown.gate.published import Published
from draindown.pages import overview
from draindown.planning.plan import planned
from draindown.runs import report, store
from draindown.runs.request import Request
from tests.flowfiles import commit, drained
from tests.tables.test_standing import done, failed

ACTS = ("deliver", "publish", "another batch", "plan", "check", "fail")


def act(asked: Request, what: str, number: int) -> None:
    """Something that happens to a flow."""
    landing = Path(asked.root, "in", f"{number + 10}.json")
    if what == "deliver":
        landing.write_text("x" * (number + 5) + "\n")
    elif what == "another batch":
        commit(asked, number + 2)
    elif what == "publish":
        table = asked.layout.tables.target
        pointer = Published(
            version=table.version, table_id=table.id, changed_at=now(), at=now(), run_id="r", rows=1
        )
        published.publish(asked.layout, pointer)
    elif what == "plan":
        planned(asked.model_copy(update={"step": "plan", "start": store.next_start(asked.layout)}))
    else:
        step = {"step": "check", "start": store.next_start(asked.layout)}
        leave = asked.model_copy(update=step)
        outcome = "done" if what == "check" else "failed"
        error = {"code": "jvm-gone", "found": "f"} if what == "fail" else None
        store.write(asked.layout, report.of(leave, now(), outcome, error=error))  # type: ignore[arg-type]


def commit_times(path: str) -> dict[int, int]:
    """When each commit of a table was made, in milliseconds, from the files of its log."""
    times = {}
    for file in Path(path, "_delta_log").glob("*.json"):
        infos = (json.loads(line).get("commitInfo") for line in file.read_text().splitlines())
        times[int(file.stem)] = next(info["timestamp"] for info in infos if info)
    return times


@pytest.mark.parametrize(
    "acts",
    [
        (),
        ("deliver", "plan"),
        ("publish", "another batch", "another batch", "plan"),
        ("publish", "check", "deliver", "plan", "deliver", "fail"),
        ("deliver", "plan", "another batch", "check", "plan"),
    ],
)
def test_facts_are_those_of_the_tables_and_everybody_says_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], acts: tuple[str, ...]
) -> None:
    asked = drained(tmp_path)
    pipelines = tmp_path / "dags" / "pipelines"
    pipelines.mkdir(parents=True)
    written = json.dumps(asked.spec.model_dump(mode="json", exclude_defaults=True))
    (pipelines / "p.yaml").write_text(written)
    waiting, version, newest = None, None, None
    for number, what in enumerate(acts):
        act(asked, what, number)
        version = asked.layout.tables.target.version if what == "publish" else version
        newest = what if what in ("plan", "check", "fail") else newest
        delivered = list((tmp_path / "in").glob("??.json"))
        waiting = (len(delivered), sum(map(size, delivered))) if what == "plan" else waiting
    health = Health(asked.layout, now())
    backlog = health.waiting.backlog
    assert (backlog and (backlog.units, backlog.bytes)) == waiting
    assert (health.published and health.published.version) == version
    times = commit_times(asked.layout.tables.target.path)
    pending = [at for number, at in times.items() if version is None or number > version]
    created = DeltaTable(asked.layout.tables.target.path).metadata().created_time
    since = created if version is None else min(pending, default=None)
    assert health.unpublished_since == (None if since is None else moment(since))
    for name, path in (("table", "target"), ("ledger", "ledger"), ("intake", "")):
        table = getattr(asked.layout.tables, path) if path else asked.layout.tables.intake(1)
        live = map(unquote, DeltaTable(table.path).file_uris())
        assert health.sizes[name] == sum(map(size, map(Path, live)))
    assert (health.newest_run is None) == (newest is None)

    (view,) = overview.flows(pipelines, tmp_path)
    examined = examine(asked)
    assert view.waiting == str(health.waiting) == examined.looked["waiting"]
    assert view.published == str("nothing yet" if version is None else version)
    main(["--root", str(tmp_path), "status", "--json"])
    (status,) = json.loads(capsys.readouterr().out)
    there = list((tmp_path / "in").glob("??.json"))
    assert (status["waiting"]["units"], status["waiting"]["bytes"]) == (
        len(there),
        sum(map(size, there)),
    )


def size(file: Path) -> int:
    return file.stat().st_size


def moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def test_the_last_success_is_of_the_newest_run_that_did_all_it_had_to_do(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    assert Health(asked.layout, now()).last_success is None
    done(asked)
    health = Health(asked.layout, now())
    ended = health.last_success
    assert health.newest_run is not None and ended == health.newest_run.at
    failed(asked.model_copy(update={"run_id": "later"}))
    health = Health(asked.layout, now())
    assert health.newest_run is not None and health.newest_run.mark == "FAILED"
    assert health.last_success == ended
    assert health.as_dict()["last_success"] == ended.isoformat(timespec="seconds")


def test_the_age_of_what_waits_is_that_of_now(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    (tmp_path / "in" / "10.json").write_text("{}\n")
    planned(asked.model_copy(update={"step": "plan", "start": store.next_start(asked.layout)}))
    seen = Health(asked.layout, now()).waiting
    assert seen.backlog is not None and seen.backlog.oldest_seconds is not None
    assert seen.seen_at is not None and now() - seen.seen_at < timedelta(minutes=5)
