"""Taking files in: each whole file is in exactly one cut, each broken one is parked, whatever
happens in between.
"""

from __future__ import annotations

import errno
import gzip
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draindown.base.errors import TerminalError, TransientError
from draindown.base.exits import Exit, exit_for
from draindown.config.sources import FilesSource
from draindown.lake import delta
from draindown.lake.delta import BOUNDED
from draindown.runs.request import Request
from draindown.sources import intake
from draindown.sources.batch_size import Bound, bound_for
from draindown.sources.files import catalog, parked, pinning
from draindown.sources.files.batching import divided
from draindown.sources.files.container import FileBytes
from draindown.sources.files.inspection import Verified
from draindown.sources.port import Taken
from draindown.sources.registry import source_of
from tests.flowfiles import take_in
from tests.flowfiles import waiting as request

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
MB = 1024**2


def take(asked: Request, minutes: int = 0, **more: Any) -> Taken:
    return take_in(asked, heap_bytes=2048 * MB, now=NOW + timedelta(minutes=minutes), **more)


def rows(asked: Request) -> list[dict[str, Any]]:
    return list(
        asked.layout.tables.intake(1).query("select * from t order by slice, input").to_pylist()
    )


def put(root: Path, *names: str, data: bytes = b'{"a":1}\n', mtime: int = 1_000_000_000) -> None:
    for name in names:
        path = root / "in" / name
        path.write_bytes(gzip.compress(data, mtime=0) if name.endswith(".gz") else data)
        os.utime(path, (mtime, mtime))


files = st.lists(st.integers(0, 50), max_size=60).map(
    lambda sizes: [Verified(f"/{i}", size, 0, raw_bytes=size) for i, size in enumerate(sizes)]
)


@given(files, st.integers(1, 60), st.integers(1, 10))
def test_cuts_keep_every_file_once_in_order_within_bounds(
    some: list[Verified], size: int, count: int
) -> None:
    cuts = list(divided(some, lambda: Bound(size, count, "")))
    assert [file for group in cuts for file in group] == some
    for group in cuts:
        assert 1 <= len(group) <= count
        assert len(group) == 1 or sum(file.raw_bytes for file in group) <= size
    for group, following in pairwise(cuts):  # none could have held one more
        assert len(group) == count or sum(f.raw_bytes for f in [*group, following[0]]) > size


def test_a_cut_holds_files_of_few_shapes() -> None:
    many = [Verified(f"/{n}", 1, 0, raw_bytes=1, shape=str(n % 40)) for n in range(120)]
    cuts = list(divided(many, lambda: Bound(10**6, 1000, "")))
    assert [file for group in cuts for file in group] == many
    assert [len({file.shape for file in group}) for group in cuts] == [32, 32, 32, 24]


@pytest.mark.parametrize(
    ("source", "heap", "expected"),
    [
        ({}, 2048 * MB, (256 * MB, 2000)),
        ({}, 10 * MB, (32 * MB, 2000)),
        ({}, 64 * 1024 * MB, (1024 * MB, 2000)),
        ({"max_bytes_per_trigger": "5mb"}, 2048 * MB, (5 * MB, 2000)),
        ({"max_files_per_trigger": 7}, 2048 * MB, (256 * MB, 7)),
        ({"max_files_per_trigger": 9000}, 2048 * MB, (256 * MB, 2000)),
    ],
)
def test_a_bound_is_never_missing_and_gives_its_reason(
    source: dict[str, Any], heap: int, expected: Any
) -> None:
    bound = bound_for(FilesSource(files="x", format="json", **source), heap)
    assert (bound.bytes, bound.units) == expected
    assert bound.reason


def test_a_bound_is_spelled_for_people() -> None:
    heap = int(1.94 * 1024 * MB)
    reason = bound_for(FilesSource(files="x", format="json"), heap).reason
    assert reason == "sized to memory: 248 MB (heap 1.9 GB / 8)"


def test_one_commit_is_one_cut_and_records_what_was_seen(tmp_path: Path) -> None:
    asked = request(tmp_path, max_files_per_trigger=2)
    put(tmp_path, "a.json", "b.json.gz", "c.json", data=b'{"a":1}\n\n')
    seen: list[tuple[int, int]] = []
    taken = take(asked, progress=lambda done, total: seen.append((done, total)))
    assert (taken.slices, taken.units, taken.kept_out, taken.findings) == (2, 3, 0, ())
    assert [row["slice"] for row in rows(asked)] == [1, 1, 2]
    assert asked.layout.tables.intake(1).version == 2
    first = rows(asked)[1]
    assert first["input"] == str(tmp_path / "in/b.json.gz")
    assert (first["lines"], first["blank"], first["unpacked"], first["records"]) == (2, 1, 9, None)
    assert (first["first_seen"], first["mtime_ns"], first["multiline"]) == (
        NOW,
        1_000_000_000 * 10**9,
        False,
    )
    assert seen == [(3, 3)]


def test_every_commit_adds_one_file_so_that_a_stream_reads_it_as_one_batch(tmp_path: Path) -> None:
    asked = request(tmp_path, max_files_per_trigger=1)
    put(tmp_path, "a.json", "b.json")
    take(asked)
    metrics = [commit.metrics for commit in asked.layout.tables.intake(1).commits(2)]
    assert [found["num_added_files"] for found in metrics] == [1, 1]


def test_nothing_new_writes_nothing(tmp_path: Path) -> None:
    asked = request(tmp_path)
    put(tmp_path, "a.json", "bad.json.gz")
    (tmp_path / "in/bad.json.gz").write_bytes(b"no gzip")
    assert (take(asked).slices, take(asked, 1).slices) == (1, 0)
    again = take(asked, 2)
    assert (again.kept_out, again.findings) == (0, ())
    assert asked.layout.tables.intake(1).version == 1
    assert asked.layout.tables.parked.version == 1


def test_an_empty_source_still_makes_the_table_a_stream_can_start_on(tmp_path: Path) -> None:
    asked = request(tmp_path)
    assert take(asked).slices == 0
    assert asked.layout.tables.intake(1).version == 0
    assert Path(asked.layout.tables.intake(1).path).stat().st_mode & 0o777 == 0o700


def test_parked_files_are_for_their_owner_alone_and_are_found_by_path_and_time(
    tmp_path: Path,
) -> None:
    asked = request(tmp_path)
    (tmp_path / "in/a.json.gz").write_bytes(b"x")
    take(asked)
    assert Path(asked.layout.tables.parked.path).stat().st_mode & 0o777 == 0o700
    assert asked.layout.tables.parked.properties[BOUNDED] == "path,at"


def test_a_late_file_with_an_old_mtime_is_taken(tmp_path: Path) -> None:
    asked = request(tmp_path)
    put(tmp_path, "a.json")
    take(asked)
    put(tmp_path, "old.json", mtime=0)
    assert take(asked, 1).units == 1


def test_an_mtime_beyond_what_a_table_holds_keeps_no_file_out(tmp_path: Path) -> None:
    asked, year_2300 = request(tmp_path), 10_413_792_000
    put(tmp_path, "far.json", mtime=year_2300)
    put(tmp_path, "other.json", data=b"PAR1", mtime=year_2300)
    if (tmp_path / "in/far.json").stat().st_mtime != year_2300:
        pytest.skip("this file system has no such mtime")
    put(tmp_path, "a.json")
    taken = take(asked)
    assert (taken.units, taken.kept_out) == (2, 1)
    found = [(Path(row["input"]).name, row["mtime_ns"], row["arrived_at"]) for row in rows(asked)]
    assert found == [
        ("a.json", 10**18, datetime.fromtimestamp(10**9, UTC)),
        ("far.json", 2**63 - 1, NOW),
    ]
    assert [event.mtime_ns for event in parked.open_files(asked.layout)] == [2**63 - 1]
    again = take(asked, 1)
    assert (again.units, again.findings) == (0, ())
    (read,) = intake.slices(asked.layout, 1, 1)
    source_of(asked).refuse_changed(read.units)


def test_the_same_content_under_another_name_is_new_input(tmp_path: Path) -> None:
    asked = request(tmp_path)
    put(tmp_path, "a.json")
    take(asked)
    put(tmp_path, "again.json")
    assert take(asked, 1).units == 1


def test_a_known_file_that_is_gone_is_not_worth_a_word(tmp_path: Path) -> None:
    asked = request(tmp_path)
    put(tmp_path, "a.json")
    take(asked)
    (tmp_path / "in/a.json").unlink()
    assert take(asked, 1).findings == ()


def test_a_touched_file_is_hashed_once_and_then_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = request(tmp_path)
    put(tmp_path, "a.json")
    take(asked)
    put(tmp_path, "a.json", mtime=1_500_000_000)
    assert take(asked, 1).findings == ()
    monkeypatch.setattr(pinning, "sha256_of", forbidden)
    assert take(asked, 2).findings == ()
    assert parked.open_files(asked.layout) == []


def forbidden(path: str) -> str:
    raise AssertionError(path)


@pytest.mark.parametrize("data", [b'{"a":2}\n', b'{"a":1}\n{"a":2}\n'])
def test_a_file_that_changed_after_it_was_taken_is_reported_once(
    tmp_path: Path, data: bytes
) -> None:
    asked = request(tmp_path)
    put(tmp_path, "a.json")
    take(asked)
    put(tmp_path, "a.json", data=data, mtime=1_500_000_000)
    taken = take(asked, 1)
    assert [(f.kind, bool(f.next)) for f in taken.findings] == [("changed", True)]
    assert (taken.units, taken.kept_out) == (0, 1)
    assert [event.reason for event in parked.open_files(asked.layout)] == ["changed"]
    assert take(asked, 2).findings == ()


def test_a_parked_file_keeps_its_head_and_comes_in_once_it_is_whole(tmp_path: Path) -> None:
    asked = request(tmp_path)
    put(tmp_path, "good.json")
    whole = gzip.compress(b'{"a":1}\n' * 100)
    (tmp_path / "in/a.json.gz").write_bytes(whole[:30])
    taken = take(asked)
    assert (taken.units, taken.kept_out, [f.kind for f in taken.findings]) == (1, 1, ["parked"])
    (event,) = parked.open_files(asked.layout)
    assert (event.reason, event.run_id) == ("truncated", "r")
    assert parked.head_of(asked.layout, event.path) == whole[:30]
    (tmp_path / "in/a.json.gz").write_bytes(whole)
    assert take(asked, 1).units == 1
    assert parked.open_files(asked.layout) == []
    assert [event.state for event in parked.events(asked.layout, event.path)] == [
        "parked",
        "retried",
    ]


def test_retry_looks_again_and_discard_does_not(tmp_path: Path) -> None:
    asked = request(tmp_path)
    (tmp_path / "in/a.json.gz").write_bytes(b"x")
    (tmp_path / "in/b.json.gz").write_bytes(b"x")
    take(asked)
    paths = [event.path for event in parked.open_files(asked.layout)]
    # the clock stands still
    parked.retry(asked.layout, paths[:1], by="me", note="see ticket", now=NOW)
    parked.discard(asked.layout, lambda path: path.endswith("b.json.gz"), by="me", note="", now=NOW)
    assert parked.open_files(asked.layout) == []
    assert take(asked, 1).kept_out == 1
    assert [event.path for event in parked.open_files(asked.layout)] == paths[:1]
    with pytest.raises(TerminalError) as caught:
        parked.discard(asked.layout, paths, by="me", note="", now=NOW)
    assert caught.value.code == "not-parked"
    assert paths[1] in caught.value.found


class Killed(BaseException):
    pass


@pytest.mark.parametrize("calls", range(1, 9))
@pytest.mark.parametrize("before", [True, False])
def test_killed_around_any_write_the_next_run_completes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int, before: bool
) -> None:
    asked = request(tmp_path, max_files_per_trigger=2)
    put(tmp_path, *(f"{i}.json" for i in range(7)))
    (tmp_path / "in/bad.json.gz").write_bytes(b"x")
    with monkeypatch.context() as patch:
        for name in ("create", "append"):
            patch.setattr(delta, name, killing(getattr(delta, name), [calls], before))
        with pytest.raises(Killed):
            take(asked)
    take(asked, 1)
    paths = [Path(row["input"]).name for row in rows(asked)]
    assert sorted(paths) == [f"{i}.json" for i in range(7)]
    assert len(parked.open_files(asked.layout)) == 1


def killing(call: Callable[..., Any], left: list[int], before: bool) -> Callable[..., Any]:
    def counted(*args: Any, **more: Any) -> Any:
        left[0] -= 1
        if left[0] == 0 and before:
            raise Killed
        result = call(*args, **more)
        if left[0] == 0:
            raise Killed
        return result

    return counted


def test_what_is_known_is_read_from_its_copy_and_without_it(tmp_path: Path) -> None:
    asked = request(tmp_path, max_files_per_trigger=1)
    put(tmp_path, *(f"{i:02}.json" for i in range(12)))
    take(asked)
    copy = Path(asked.layout.tables.intake(1).path, "_known.arrow")
    paths = [row["input"] for row in rows(asked)]
    assert copy.exists()
    for damage in (None, b"", b"ARROW1 torn"):
        if damage is not None:
            copy.write_bytes(damage)
        assert sorted(catalog.find(asked.layout, [*paths, "/other"])) == sorted(paths)
    put(tmp_path, "zz.json")
    assert take(asked, 1).units == 1
    assert catalog.find(asked.layout, [str(tmp_path / "in/zz.json")]).popitem()[1].slice == 13
    assert take(asked, 2).units == 0


def test_a_copy_from_another_intake_is_not_believed(tmp_path: Path) -> None:
    asked = request(tmp_path, max_files_per_trigger=1)
    put(tmp_path, *(f"{i:02}.json" for i in range(12)))
    take(asked)
    copy = Path(asked.layout.tables.intake(1).path, "_known.arrow").read_bytes()
    for path in Path(asked.layout.tables.intake(1).path).rglob("*"):
        if path.is_file():
            path.unlink()
    put(tmp_path, *(f"other{i:02}.json" for i in range(12)))
    for path in (tmp_path / "in").glob("[0-9]*"):
        path.rename(path.with_suffix(".aside"))
    take(asked)
    Path(asked.layout.tables.intake(1).path, "_known.arrow").write_bytes(copy)
    for path in (tmp_path / "in").glob("*.aside"):
        path.rename(path.with_suffix(".json"))
    assert take(asked, 1).units == 12


def test_a_large_backlog_is_taken_in_its_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pinning, "_AT_ONCE", 16)
    asked = request(tmp_path, max_files_per_trigger=30)
    for i in range(100):
        put(tmp_path, f"{99 - i:02}.json", mtime=1_000_000 + i)
    assert take(asked).slices == 4
    order = (
        asked.layout.tables.intake(1)
        .query("select input from t order by slice, mtime_ns")["input"]
        .to_pylist()
    )
    assert [Path(path).name for path in order] == [f"{99 - i:02}.json" for i in range(100)]


def test_pinned_files_are_proven_unchanged(tmp_path: Path) -> None:
    asked = request(tmp_path)
    put(tmp_path, *(f"{i}.json" for i in range(5)))
    take(asked)
    units = [unit for one in intake.slices(asked.layout, 1) for unit in one.units]
    source = source_of(asked)
    assert source.missing(units) == {}
    os.utime(units[0].name)
    put(tmp_path, "1.json", data=b'{"a":9}\n', mtime=5)
    put(tmp_path, "2.json", data=b"")
    Path(units[3].name).unlink()
    found = source.missing(units)
    assert [(Path(f.subject).name, f.kind) for f in found.values()] == [
        ("1.json", "changed"),
        ("2.json", "changed"),
        ("3.json", "vanished"),
    ]
    assert all(f.next for f in found.values())


def test_portions_take_every_file_once_and_each_has_its_own_bound(tmp_path: Path) -> None:
    asked = request(tmp_path)
    names = [f"{number:02}.json" for number in range(20)]
    put(tmp_path, *names)
    with closing(source_of(asked).pin(1, NOW)) as inlet:
        put(tmp_path, "later.json")
        assert inlet.take(Bound(16, 100, ""), 1)
        assert [row["slice"] for row in rows(asked)] == [1, 1]
        assert inlet.take(Bound(40, 100, ""), 3)
        assert not inlet.take(Bound(8, 100, ""), 100)
        assert (inlet.taken.slices, inlet.taken.units) == (1 + 3 + 3, 20)
    sizes = Counter(row["slice"] for row in rows(asked))
    assert [sizes[cut] for cut in sorted(sizes)] == [2, 5, 5, 5, 1, 1, 1]
    assert [Path(row["input"]).name for row in rows(asked)] == names
    assert take(asked, 1).units == 1


def test_an_intake_that_ends_between_portions_leaves_the_rest_new(tmp_path: Path) -> None:
    asked = request(tmp_path)
    put(tmp_path, *[f"{number}.json" for number in range(6)])
    (tmp_path / "in/3.json.gz").write_bytes(b"no gzip")
    with closing(source_of(asked).pin(1, NOW)) as inlet:
        inlet.take(Bound(16, 100, ""), 1)
    assert len(rows(asked)) == 2
    again = take(asked, 1)
    assert (again.units, again.kept_out) == (4, 0)
    assert len(list(parked.latest(asked.layout))) == 1
    assert sorted(Path(row["input"]).name for row in rows(asked)) == [
        f"{number}.json" for number in range(6)
    ]


def test_a_file_that_changes_while_it_waits_for_its_portion_is_left_for_the_next_run(
    tmp_path: Path,
) -> None:
    asked = request(tmp_path)
    put(tmp_path, *[f"{number}.json" for number in range(4)])
    with closing(source_of(asked).pin(1, NOW)) as inlet:
        inlet.take(Bound(8, 100, ""), 1)
        put(tmp_path, "1.json", data=b'{"a":2}\n{"a":3}\n')
        (tmp_path / "in/2.json").unlink()
        put(tmp_path, "3.json", mtime=1_000_000_007)  # only touched
        assert not inlet.take(Bound(8, 100, ""))
        told = [(finding.kind, Path(finding.subject).name) for finding in inlet.taken.findings]
    assert told == [("unsettled", "1.json"), ("unsettled", "2.json")]
    assert [Path(row["input"]).name for row in rows(asked)] == ["0.json", "3.json"]
    assert [row["slice"] for row in rows(asked)] == [1, 2]
    take(asked, 1)
    assert [(Path(row["input"]).name, row["lines"]) for row in rows(asked)][2:] == [("1.json", 2)]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of files that storage fails to read, to be added to."""
    names: set[str] = set()
    whole = FileBytes.chunks

    def chunks(data: FileBytes) -> Iterator[bytes]:
        if Path(data.handle.name).name in names:
            raise OSError(errno.EIO, "Input/output error")
        return whole(data)

    monkeypatch.setattr(FileBytes, "chunks", chunks)
    return names


def test_a_file_that_storage_fails_to_read_is_left_out_once_and_not_parked(
    tmp_path: Path, failing: set[str]
) -> None:
    asked = request(tmp_path)
    put(tmp_path, "1.json", "2.json")
    failing.add("2.json")
    source = source_of(asked)
    taken = take(asked, source=source)
    assert (taken.units, taken.kept_out) == (1, 0)
    (told,) = taken.findings
    assert (told.kind, Path(told.subject).name) == ("unread", "2.json") and "EIO" in told.detail
    source.refuse_findings(taken.findings)  # the other file was read
    failing.clear()
    taken = take(asked, 1)
    assert (taken.units, taken.kept_out, taken.findings) == (1, 0, ())


def test_where_storage_fails_for_all_files_the_run_may_be_tried_again(
    tmp_path: Path, failing: set[str]
) -> None:
    asked = request(tmp_path)
    put(tmp_path, "1.json", "2.json")
    failing.update(("1.json", "2.json"))
    source = source_of(asked)
    taken = take(asked, source=source)
    assert (taken.units, taken.kept_out) == (0, 0)
    with pytest.raises(TransientError) as caught:
        source.refuse_findings(taken.findings)
    assert (caught.value.code, exit_for(caught.value)) == ("files-unread", Exit.TRY_AGAIN)
    assert "EIO" in caught.value.found


def test_a_slice_is_read_from_its_commit_as_from_the_log(tmp_path: Path) -> None:
    asked = request(tmp_path)
    put(tmp_path, *[f"{n}.json" for n in range(7)])
    take(asked)
    put(tmp_path, "z.json.gz", "ä b.json", data=b'{"a":1}\n\n{"a":2}\n')
    take(asked, minutes=1)
    told = list(intake.slices(asked.layout, 1))
    assert len(told) > 1
    found = [intake.pinned(asked.layout, 1, one.number) for one in told]
    assert found == told
    assert [unit.row for one in found if one for unit in one.units] == [
        unit.row for one in told for unit in one.units
    ]
    assert intake.pinned(asked.layout, 1, told[-1].number + 1) is None


@pytest.mark.parametrize(
    "harm", ["torn commit", "two files", "torn file", "no file", "another slice"]
)
def test_a_slice_whose_commit_is_not_one_whole_file_is_left_to_the_log(
    tmp_path: Path, harm: str
) -> None:
    asked = request(tmp_path)
    put(tmp_path, "a.json")
    take(asked)
    home = Path(asked.layout.tables.intake(1).path)
    commit = home / "_delta_log" / f"{1:020}.json"
    (file,) = home.glob("*.parquet")
    match harm:
        case "torn commit":
            commit.write_text(commit.read_text()[:-20])
        case "two files":
            commit.write_text(commit.read_text() * 2)
        case "torn file":
            file.write_bytes(file.read_bytes()[:50])
        case "no file":
            file.unlink()
        case "another slice":
            commit.rename(commit.with_name(f"{2:020}.json"))
    assert intake.pinned(asked.layout, 1, 2 if harm == "another slice" else 1) is None
