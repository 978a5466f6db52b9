"""The gate's memory and page, without an engine."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import filelock
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from draindown.base.clock import now
from draindown.base.errors import TerminalError
from draindown.cli.gate import _text as shown_by_gate
from draindown.config.targets import Maintenance
from draindown.gate import page as gate_page
from draindown.gate import published, refusal, waivers
from draindown.gate import suite as gate_suite
from draindown.lake.home import FlowHome
from draindown.ledger.rows import BatchRow
from draindown.planning import compaction
from draindown.runs import report
from draindown.runs.report import CheckPart, Expectation

AT = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def layout(tmp_path: Path) -> FlowHome:
    return FlowHome(str(tmp_path), "flights", "flights", "flights")


def pointer(layout: FlowHome, version: int, *, table_id: str | None = None) -> published.Published:
    state = published.unpublished(layout)
    assert state is not None
    return published.Published(
        version=version,
        table_id=table_id or state.table_id,
        changed_at=AT,
        at=now(),
        run_id="r",
        rows=1,
    )


def write(layout: FlowHome, *, batch: int | None = None, rows: int = 1) -> None:
    metadata = BatchRow("p", "f", 1, batch, "r").as_metadata() if batch is not None else None
    properties = CommitProperties(custom_metadata={"userMetadata": metadata}) if metadata else None
    table = pa.table({"day": ["it's \\ 1"] * rows, "n": list(range(rows))})
    write_deltalake(
        layout.tables.target.path,
        table,
        mode="append",
        partition_by=["day"],
        commit_properties=properties,
    )


def failing(name: str = "e", **more: object) -> Expectation:
    return Expectation.model_validate({"name": name, "success": False, "scope": "changed", **more})


def test_without_a_table_nothing_is_unpublished(layout: FlowHome) -> None:
    assert published.unpublished(layout) is None
    assert published.carry(layout) is None


def test_without_a_pointer_all_rows_are_unpublished(layout: FlowHome) -> None:
    write(layout, batch=0)
    state = published.unpublished(layout)
    assert state is not None
    assert (state.version, state.since, state.pending) == (0, None, True)


def test_batches_after_the_pointer_are_pending_from_its_time_on(layout: FlowHome) -> None:
    write(layout, batch=0)
    published.publish(layout, pointer(layout, 0))
    state = published.unpublished(layout)
    assert state is not None
    assert not state.pending
    write(layout, batch=1)
    state = published.unpublished(layout)
    assert state is not None
    assert (state.pending, state.since) == (True, AT)


def test_another_commit_of_the_published_number_is_not_published(layout: FlowHome) -> None:
    """A table that was put back from a copy counts on from there: its next commit bears a number
    that passed before.
    """
    for batch in (0, 1):
        write(layout, batch=batch)
    state = published.unpublished(layout)
    assert state is not None
    published.publish(
        layout, pointer(layout, 1).model_copy(update={"committed_ms": state.committed_ms})
    )
    again = published.unpublished(layout)
    assert again is not None and again.published is not None and not again.pending
    Path(layout.tables.target.path, "_delta_log", f"{1:020}.json").unlink()
    for batch in (2, 3):
        write(layout, batch=batch)
        put_back = published.unpublished(layout)
        assert put_back is not None
        assert (put_back.published, put_back.since, put_back.pending) == (None, None, True)


def test_a_slow_check_does_not_give_way_to_a_pointer_that_names_another_commit(
    layout: FlowHome,
) -> None:
    for batch in (0, 1):
        write(layout, batch=batch)
    published.publish(layout, pointer(layout, 1).model_copy(update={"committed_ms": 1}))
    judged = pointer(layout, 0)
    write(layout, batch=2)
    assert published.publish(layout, judged) == judged == published.published(layout)
    state = published.unpublished(layout)
    assert state is not None
    later = pointer(layout, 2).model_copy(update={"committed_ms": state.committed_ms})
    assert published.publish(layout, later) == later == published.publish(layout, judged)


def test_a_pointer_that_moves_between_anothers_look_and_its_write_is_seen(
    layout: FlowHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two checks end at once, on two hosts: no lock of one is seen by the other."""
    for batch in (0, 1, 2):
        write(layout, batch=batch)
    first, slow, quick = (pointer(layout, version) for version in (0, 1, 2))
    right, looks = published._stays, list[int]()

    def overtaken(where: FlowHome, newest: published.Published, this: published.Published) -> bool:
        looks.append(this.version)
        if looks == [1]:
            assert published.publish(where, quick) == quick
        return right(where, newest, this)

    published.publish(layout, first)
    monkeypatch.setattr(published, "_stays", overtaken)
    assert published.publish(layout, slow) == quick == published.published(layout)
    assert looks == [1, 2, 1]


def test_commit_by_other_hands_leaves_no_time_to_trust(layout: FlowHome) -> None:
    write(layout, batch=0)
    published.publish(layout, pointer(layout, 0))
    write(layout)
    state = published.unpublished(layout)
    assert state is not None
    assert (state.pending, state.since) == (True, None)


@pytest.mark.parametrize(("version", "table_id"), [(0, "another"), (5, None)])
def test_pointer_of_another_table_does_not_count(
    layout: FlowHome, version: int, table_id: str | None
) -> None:
    write(layout, batch=0)
    published.publish(layout, pointer(layout, version, table_id=table_id))
    state = published.unpublished(layout)
    assert state is not None
    assert state.published is None


def test_carry_stops_at_a_change(layout: FlowHome) -> None:
    write(layout, batch=0)
    published.publish(layout, pointer(layout, 0))
    write(layout, batch=1)
    carried = published.carry(layout)
    assert carried is not None
    assert carried.version == 0


def test_waiver_holds_until_its_end(layout: FlowHome) -> None:
    waivers.waive(
        layout,
        "e",
        by="ada",
        reason=" known ",
        known=["e"],
        until_version=4,
        until=now() + timedelta(hours=1),
    )
    waiver = waivers.waivers(layout)["e"]
    assert waiver.reason == "known"
    assert waiver.holds("x", 4, now())
    assert not waiver.holds("x", 5, now())
    assert not waiver.holds("x", 4, now() + timedelta(hours=2))
    assert [
        e.waived for e in waivers.apply_waivers(layout, [failing("e"), failing("f")], "x", 4)
    ] == [True, False]
    waivers.unwaive(layout, "e")
    assert waivers.waivers(layout) == {}


def test_a_waiver_until_a_version_is_over_once_another_table_counts_from_0_again(
    layout: FlowHome,
) -> None:
    write(layout)
    for name, limit in (("versions", 3), ("always", None)):
        waivers.waive(layout, name, by="ada", reason="known", until_version=limit)
    old = layout.tables.target.id
    assert waivers.holding(layout, old, 3) == {"versions", "always"}
    assert waivers.holding(layout, old, 4) == {"always"}
    Path(layout.tables.target.path).rename(f"{layout.tables.target.path}-aside")
    write(layout)
    new = layout.tables.target.id
    assert waivers.holding(layout, new, 0) == {"always"}
    told = {
        name: waiver.model_dump(mode="json") for name, waiver in waivers.waivers(layout).items()
    }
    shown = {"published": None, "waivers": told, "expectations": [], "last": None}
    for table, words in (
        (old, "until version 3, by"),
        (new, "until version 3 of an earlier table, by"),
    ):
        assert f"versions {words} ada: known" in shown_by_gate("p/f", shown | {"table": table})
    waivers.waive(layout, "versions", by="ada", reason="known", until_version=3)
    assert waivers.holding(layout, new, 3) == {"versions", "always"}


def test_a_waiver_that_names_no_table_holds_for_any(layout: FlowHome) -> None:
    """Written before there was a table."""
    waivers.waive(layout, "e", by="ada", reason="known", until_version=3)
    write(layout)
    assert waivers.waivers(layout)["e"].table is None
    assert waivers.holding(layout, layout.tables.target.id, 3) == {"e"}
    assert not waivers.holding(layout, layout.tables.target.id, 4)


def test_waivers_are_refused_with_a_name(layout: FlowHome) -> None:
    with pytest.raises(TerminalError) as caught:
        waivers.waive(layout, "e", by="ada", reason=" ")
    assert caught.value.code == "waiver-without-reason"
    with pytest.raises(TerminalError) as caught:
        waivers.waive(layout, "e", by="ada", reason="x", known=["f"])
    assert caught.value.code == "unknown-expectation"
    with pytest.raises(TerminalError) as caught:
        waivers.unwaive(layout, "e")
    assert caught.value.code == "unknown-waiver"


def test_names_are_unique_and_say_the_column() -> None:
    suite = {
        "expectations": [
            {"type": "a", "kwargs": {"column": "x"}},
            {"expectation_type": "a", "kwargs": {"column": "x"}},
            {"type": "a", "kwargs": {"column_list": ["x", "y"]}},
            {
                "type": "a",
                "kwargs": {"column_A": "x", "column_B": "y"},
                "meta": {"draindown": {"name": "mine"}},
            },
            {"type": "a"},
        ]
    }
    assert gate_suite.names(suite) == ["a:x", "a:x#2", "a:x,y", "mine", "a"]
    assert gate_suite.names(None) == []


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (["x", "x", "x#2"], ["x", "x#3", "x#2"]),
        (["x#2", "x", "x"], ["x#2", "x", "x#3"]),
        (["x", "x", "x", "x#2", "x#2"], ["x", "x#3", "x#4", "x#2", "x#2#2"]),
    ],
)
def test_names_stay_unique_beside_given_ones_that_look_numbered(
    given: list[str], found: list[str]
) -> None:
    suite = {
        "expectations": [{"type": "t", "meta": {"draindown": {"name": name}}} for name in given]
    }
    assert gate_suite.names(suite) == found


def test_the_pointer_never_moves_back(layout: FlowHome) -> None:
    for batch in range(4):
        write(layout, batch=batch)
    newest, slow = pointer(layout, 3), pointer(layout, 1)
    assert published.publish(layout, newest) == newest
    assert published.publish(layout, slow) == newest
    assert published.published(layout) == newest


def _interrupted(patch: pytest.MonkeyPatch, model: type[Any], other: Callable[[], object]) -> None:
    """Have `other` happen right after the next document of this kind was read; file locks hold
    nobody back.
    """
    patch.setattr(filelock.FileLock, "acquire", lambda *_, **__: None)
    patch.setattr(filelock.FileLock, "release", lambda *_, **__: None)
    right, waiting = model.model_validate, [other]

    def read(content: Any) -> Any:
        found = right(content)
        if waiting:
            waiting.pop()()
        return found

    patch.setattr(model, "model_validate", read)


def test_the_pointer_never_moves_back_where_file_locks_do_not_hold(
    layout: FlowHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    for batch in range(4):
        write(layout, batch=batch)
    newest, slow = pointer(layout, 3), pointer(layout, 2)
    published.publish(layout, pointer(layout, 1))
    _interrupted(monkeypatch, published.Published, lambda: published.publish(layout, newest))
    assert published.publish(layout, slow) == newest
    assert published.published(layout) == newest


def test_no_waiver_is_lost_where_file_locks_do_not_hold(
    layout: FlowHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    waivers.waive(layout, "a", by="me", reason="r")
    _interrupted(
        monkeypatch, waivers.Waiver, lambda: waivers.waive(layout, "b", by="you", reason="r")
    )
    waivers.waive(layout, "c", by="me", reason="r")
    assert waivers.waivers(layout).keys() == {"a", "b", "c"}
    monkeypatch.undo()
    _interrupted(
        monkeypatch, waivers.Waiver, lambda: waivers.waive(layout, "d", by="you", reason="r")
    )
    assert waivers.unwaive(layout, "a").by == "me"
    assert waivers.waivers(layout).keys() == {"b", "c", "d"}


@pytest.mark.parametrize(("version", "table_id"), [(9, None), (9, "another")])
def test_a_pointer_that_names_nothing_gives_way(
    layout: FlowHome, version: int, table_id: str | None
) -> None:
    write(layout, batch=0)
    published.publish(layout, pointer(layout, version, table_id=table_id))
    found = pointer(layout, 0)
    assert published.publish(layout, found) == found
    assert published.published(layout) == found


def test_refusal_names_failures_and_survives_pickling(layout: FlowHome) -> None:
    judged = [failing("it's", judged=9, unexpected=2, sample=["v"]), failing("w", waived=True)]
    error = refusal.refusal(
        layout,
        CheckPart(version=3, published_before=1, expectations=judged, page="/p"),
        keyed=False,
    )
    assert error.code == "gate-failed"
    assert "2 of 9 rows" in error.found
    assert "w:" not in error.found
    assert (
        error.next[1]
        == "draindown gate waive flights/flights 'it'\"'\"'s' --for \"1 day\" --note TEXT"
    )
    assert pickle.loads(pickle.dumps(error)).as_dict() == error.as_dict()


def test_an_expectation_that_is_not_critical_is_a_finding_and_refuses_nothing(
    layout: FlowHome,
) -> None:
    warning = failing("w", severity="warning", judged=9, unexpected=2, sample=["v"])
    judged = [failing("c"), warning, failing("x", severity="info", waived=True)]
    part = CheckPart(version=3, expectations=[*judged, failing("i", severity="info")])
    error = refusal.refusal(layout, part, keyed=True)
    assert error.found == "c: " and [line for line in error.next if "quarantine" in line] == []
    first, second = refusal.findings(layout, part)
    assert (first.kind, first.subject) == ("expectation", "w")
    assert first.detail == "warning: 2 of 9 rows, such as v"
    assert (second.subject, second.detail) == ("i", "info: ")
    assert first.next == "draindown gate show flights/flights"


@pytest.mark.parametrize(
    ("said", "severity"),
    [({}, "critical"), ({"severity": None}, "critical")]
    + [({"severity": one}, one) for one in gate_suite.SEVERITIES],
)
def test_the_severity_of_an_expectation_is_critical_unless_said(
    said: dict[str, Any], severity: str
) -> None:
    suite = {"expectations": [{"type": "t", **said}, {"type": "t"}]}
    assert gate_suite.severities(suite) == {"t": severity, "t#2": "critical"}


def test_refusal_offers_to_withdraw_rows_only_where_that_is_possible(layout: FlowHome) -> None:
    whole = failing("whole", judged=9, unexpected=2, scope="table")
    unjudged = failing("unjudged")
    single = failing("it's", judged=9, unexpected=2)
    offer = "draindown gate withdraw flights/flights 'it'\"'\"'s'"
    for judged, keyed, offered in (
        ([whole, unjudged, single], True, [offer]),
        ([whole, unjudged, single], False, []),
        ([whole, unjudged], True, []),
    ):
        error = refusal.refusal(layout, CheckPart(version=3, expectations=judged), keyed=keyed)
        assert [command for command in error.next if "gate withdraw" in command] == offered
        assert "gate show" in error.next[0] and "gate waive" in error.next[-1]


@pytest.mark.parametrize(
    ("expectations", "verdict"),
    [
        ([], "passed"),
        ([failing()], "failed"),
        ([failing(waived=True)], "passed with waivers"),
        ([failing(waived=True), failing("f")], "failed"),
        ([failing(severity="warning"), failing("f", severity="info")], "passed"),
        ([failing(severity="warning"), failing("f")], "failed"),
        ([failing(severity="info"), failing("f", waived=True)], "passed with waivers"),
        ([failing(severity="warning", waived=True)], "passed with waivers"),
    ],
)
def test_page_says_the_verdict_first_and_escapes_values(
    expectations: list[Expectation], verdict: str
) -> None:
    nasty = "<script>alert(1)</script>"
    part = CheckPart(
        version=3,
        expectations=[e.model_copy(update={"sample": [{nasty: nasty}]}) for e in expectations],
    )
    content = {
        "verdict": gate_page.verdict(part), "pipeline": nasty, "flow": "f", "table": nasty, "run_id": nasty,
        "at": "now",
        **part.model_dump(mode="json"),
    }  # fmt: skip
    page = gate_page.render(content)
    assert gate_page.verdict(part) == verdict
    assert f"<span>{verdict}</span>" in page
    assert "<script" not in page
    assert "http://" not in page
    assert "https://" not in page
    for e in expectations:
        state = "waived" if e.waived else "failed" if e.severity == "critical" else e.severity
        assert f'<b class="{state}">{state}</b>' in page


def test_few_small_files_are_no_evidence_and_many_are(layout: FlowHome) -> None:
    for batch in range(compaction.SMALL_FILES - 1):
        write(layout, batch=batch)
    assert not compaction.work(layout, Maintenance())
    assert compaction.work(layout, Maintenance(), force=True)
    write(layout, batch=99)
    found = compaction.work(layout, Maintenance())
    assert found
    [table] = found.tables
    [partition] = table.merge
    assert partition.values == (("day", "it's \\ 1"),)
    assert (partition.files, partition.small, partition.rows, partition.deleted) == (8, 8, 8, 0)
    assert str(found) == "table: 8 small files in 1 partition"


def test_no_table_needs_no_work(layout: FlowHome) -> None:
    assert str(compaction.work(layout, Maintenance())) == "nothing to do"


def test_old_files_stay_while_the_published_version_needs_them(layout: FlowHome) -> None:
    write(layout, batch=0)
    published.publish(layout, pointer(layout, 0))
    assert compaction.kept_back(layout, 0) == ""
    write(layout, batch=1)
    assert compaction.kept_back(layout, 0) == ""
    later = now() + timedelta(days=8)
    assert compaction.kept_back(layout, 0, later).startswith(
        "old files stay: published version 0 needs them"
    )
    # in a day they would go, and with them what is published
    assert compaction.kept_back(layout, 9 * 86400, later)
    assert compaction.kept_back(layout, 10 * 86400, later) == ""


def test_a_table_that_keeps_files_for_longer_is_looked_at_all_the_same(layout: FlowHome) -> None:
    write(layout, batch=0)
    DeltaTable(layout.tables.target.path).alter.set_table_properties(
        {compaction.RETENTION: "interval 2592001 seconds"}
    )
    assert compaction.retention_of(layout.tables.target) == 30 * 86400 + 1
    assert str(compaction.work(layout, Maintenance())) == "nothing to do"


def test_partitions_outside_of_pythons_calendar_are_told_apart(layout: FlowHome) -> None:
    days = pa.array([-719_529, 2_932_897, None], pa.int32()).cast(pa.date32())
    write_deltalake(
        layout.tables.target.path, pa.table({"day": days, "n": [1, 2, 3]}), partition_by=["day"]
    )
    found = compaction.partitions(layout.tables.target, 1024)
    assert {one.values[0][1] for one in found} == {b"-719529", b"2932897", None}
    assert str(compaction.work(layout, Maintenance())) == "nothing to do"


def test_a_check_of_a_table_that_was_put_aside_moves_no_pointer(layout: FlowHome) -> None:
    write(layout, batch=0)
    own = published.publish(layout, pointer(layout, 0))
    assert (
        published.publish(layout, pointer(layout, 40, table_id="another"))
        == own
        == published.published(layout)
    )


def test_each_failed_expectation_and_a_refused_share_get_the_commands_that_decide(
    layout: FlowHome,
) -> None:
    share = failing("quarantined_share", scope="input", judged=9, unexpected=2)
    judged = [
        failing(name, judged=9, unexpected=2, sample=[{"id": "B-1", "amount": None}])
        for name in ("a", "b")
    ]
    error = refusal.refusal(layout, CheckPart(version=3, expectations=[*judged, share]), keyed=True)
    of = "flights/flights"
    plain = [command.partition("   #")[0] for command in error.next]
    assert [f"draindown quarantine {way} {of}" for way in ("list", "release", "discard")] == [
        command.removesuffix(" --yes") for command in plain[:3]
    ]
    for name in ("a", "b"):
        assert f"draindown gate withdraw flights/flights {name}" in plain
        assert f'draindown gate waive flights/flights {name} --for "1 day" --note TEXT' in plain
    assert '{"id": "B-1", "amount": null}' in error.found


def test_gate_show_does_not_advise_itself(layout: FlowHome) -> None:
    part = CheckPart(version=3, expectations=[failing("a", judged=9, unexpected=2)])
    error = refusal.refusal(layout, part, keyed=True)
    last = report.unreached(layout, "r", "check", AT, error.as_dict()).model_copy(
        update={"check": part}
    )
    state = {
        "published": None,
        "last": last.model_dump(mode="json"),
        "expectations": ["a"],
        "waivers": {},
    }
    state |= {"pipeline": "flights", "flow": "flights", "unjudged": None}
    said = shown_by_gate("flights/flights", state)
    assert "gate waive flights/flights a" in said and "draindown gate show" not in said
