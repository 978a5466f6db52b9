"""Reading Spark's checkpoints: what is consumed, what is in flight, and what can't be resumed."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from draindown.base.errors import TerminalError
from draindown.flow.checkpoint import Checkpoint, Offset, newest_directory
from draindown.flow.generations import generation, refuse_lost
from draindown.lake.home import FlowHome


def offset(version: int, index: int = -1) -> str:
    end = {"sourceVersion": 1, "reservoirId": "r", "reservoirVersion": version, "index": index}
    return (
        "v1\n"
        + json.dumps({"batchWatermarkMs": 0, "conf": {}})
        + "\n"
        + json.dumps(end | {"isStartingVersion": False})
    )


def make(home: Path, *, offsets: int, commits: int, first: int = 0) -> Checkpoint:
    for kind in ("offsets", "commits"):
        (home / kind).mkdir(parents=True)
    _write(home / "metadata", '{"id":"06a397d4"}')
    for batch in range(first, offsets):
        _write(home / f"offsets/{batch}", offset(batch + 2))
    for batch in range(first, commits):
        (home / f"commits/{batch}").write_text('v1\n{"nextBatchWatermarkMs":0}')
    (home / "offsets/.9.0d9f.tmp").write_bytes(b"")
    return Checkpoint(str(home))


def _write(file: Path, text: str) -> None:
    """As Hadoop does on local disks: beside the file its sums, one per 512 bytes."""
    file.write_text(text)
    parts = [file.read_bytes()[start : start + 512] for start in range(0, len(text), 512)]
    sums = b"".join(zlib.crc32(part).to_bytes(4, "big") for part in parts)
    file.with_name(f".{file.name}.crc").write_bytes(b"crc\0" + (512).to_bytes(4, "big") + sums)


@pytest.mark.parametrize("name", ["metadata", "offsets/2"])
@pytest.mark.parametrize("content", [b"", b"crc", b"crc\0\0\0\2\0\1\2\3\4"])
def test_a_checksum_that_spark_will_not_accept_is_named(
    tmp_path: Path, name: str, content: bytes
) -> None:
    checkpoint = make(tmp_path / "c", offsets=3, commits=3)
    file = tmp_path / "c" / name
    file.with_name(f".{file.name}.crc").write_bytes(content)
    with pytest.raises(TerminalError) as caught:
        checkpoint.verify()
    assert (caught.value.code, name in caught.value.found) == ("checkpoint-damaged", True)


def test_before_the_first_run_there_is_nothing(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path / "none"))
    checkpoint.verify()
    assert (checkpoint.started, checkpoint.last_offset, checkpoint.last_commit) == (
        False,
        None,
        None,
    )
    assert (checkpoint.in_flight, checkpoint.first_unread) == (None, 1)


def test_all_done(tmp_path: Path) -> None:
    checkpoint = make(tmp_path / "c", offsets=3, commits=3)
    checkpoint.verify()
    assert (checkpoint.started, checkpoint.last_offset, checkpoint.last_commit) == (
        True,
        Offset(2, 4),
        2,
    )
    assert (checkpoint.in_flight, checkpoint.first_unread) == (None, 4)


def test_a_planned_batch_is_in_flight_and_its_cut_not_consumed(tmp_path: Path) -> None:
    checkpoint = make(tmp_path / "c", offsets=3, commits=2)
    checkpoint.verify()
    assert (checkpoint.in_flight, checkpoint.first_unread, checkpoint.last_offset) == (
        2,
        3,
        Offset(2, 4),
    )
    first = make(tmp_path / "first", offsets=1, commits=0)
    first.verify()
    assert (first.in_flight, first.first_unread) == (0, 1)


def test_started_without_any_batch(tmp_path: Path) -> None:
    checkpoint = make(tmp_path / "c", offsets=0, commits=0)
    checkpoint.verify()
    assert (checkpoint.started, checkpoint.in_flight, checkpoint.first_unread) == (True, None, 1)


def test_an_end_inside_a_version_means_its_only_file(tmp_path: Path) -> None:
    checkpoint = make(tmp_path / "c", offsets=1, commits=1)
    (tmp_path / "c/offsets/0").write_text(offset(1, index=0))
    assert checkpoint.first_unread == 2
    (tmp_path / "c/offsets/0").write_text(offset(2, index=-100))
    assert checkpoint.first_unread == 2


def test_logs_of_old_batches_may_be_gone(tmp_path: Path) -> None:
    checkpoint = make(tmp_path / "c", offsets=200, commits=200, first=98)
    (tmp_path / "c/offsets/99").unlink()
    checkpoint.verify()
    assert checkpoint.first_unread == 201


def truncate(name: str, size: int) -> Callable[[Path], None]:
    return lambda home: (home / name).write_bytes((home / name).read_bytes()[:size])


def remove(*names: str) -> Callable[[Path], None]:
    def act(home: Path) -> None:
        for name in names:
            shutil.rmtree(home / name) if (home / name).is_dir() else (home / name).unlink()

    return act


def overwrite(name: str, text: str) -> Callable[[Path], None]:
    return lambda home: (home / name).write_text(text) and None


@pytest.mark.parametrize(
    ("damage", "code", "word"),
    [
        (truncate("metadata", 0), "checkpoint-damaged", "metadata is empty"),
        (truncate("metadata", 5), "checkpoint-damaged", "metadata is torn"),
        (overwrite("metadata", "{}"), "checkpoint-damaged", "no query"),
        (remove("metadata"), "checkpoint-without-metadata", "metadata"),
        (truncate("offsets/4", 0), "checkpoint-damaged", "offsets/4 is empty"),
        (truncate("offsets/4", 20), "checkpoint-damaged", "offsets/4 is torn"),
        (truncate("offsets/4", 90), "checkpoint-damaged", "offsets/4 is torn"),
        (truncate("offsets/3", 0), "checkpoint-damaged", "offsets/3 is empty"),
        (overwrite("offsets/4", 'v1\n{}\n{"logOffset":3}'), "checkpoint-damaged", "no position"),
        (overwrite("offsets/4", "v1\n{}\n-"), "checkpoint-damaged", "torn"),
        (truncate("commits/3", 0), "checkpoint-damaged", "commits/3 is empty"),
        (truncate("commits/3", 7), "checkpoint-damaged", "commits/3 is torn"),
        (remove("commits"), "checkpoint-damaged", "commits ends at -1"),
        (remove("commits/3"), "checkpoint-damaged", "commits ends at 2"),
        (remove("commits/1"), "checkpoint-damaged", "gaps"),
        (remove("offsets/2"), "checkpoint-damaged", "gaps"),
        (remove("offsets/4", "offsets/3"), "checkpoint-damaged", "offsets ends at 2"),
        (remove("offsets"), "checkpoint-damaged", "offsets ends at -1"),
    ],
)
def test_damage_is_named_before_spark_starts(
    tmp_path: Path, damage: Callable[[Path], None], code: str, word: str
) -> None:
    make(tmp_path / "c", offsets=5, commits=4).verify()
    damage(tmp_path / "c")
    with pytest.raises(TerminalError) as caught:
        Checkpoint(str(tmp_path / "c")).verify()
    assert caught.value.code == code
    assert word in caught.value.found
    assert caught.value.next[0].startswith("draindown reset ")
    assert str(tmp_path / "c") in caught.value.next[1]


LAYOUT = {"pipeline": "p", "flow": "f", "table_name": "f"}


def test_the_first_generation_needs_no_name(tmp_path: Path) -> None:
    layout = FlowHome(str(tmp_path), **LAYOUT)
    assert (generation(layout), newest_directory(layout)) == (1, 0)
    Path(layout.checkpoint(1)).mkdir(parents=True)
    assert (generation(layout), newest_directory(layout)) == (1, 1)


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"generation": "x"}', None])
def test_a_damaged_or_missing_name_of_the_generation_is_refused(
    tmp_path: Path, content: str | None
) -> None:
    layout = FlowHome(str(tmp_path), **LAYOUT)
    Path(layout.checkpoint(2)).mkdir(parents=True)
    if content is not None:
        Path(layout.generation.home).mkdir()
        Path(layout.generation.path).write_text(content)
    with pytest.raises(TerminalError) as caught:
        generation(layout)
    assert caught.value.code == "generation-damaged"
    assert layout.generation.path in caught.value.found


def test_a_lost_checkpoint_is_refused_where_batches_are_known(tmp_path: Path) -> None:
    layout = FlowHome(str(tmp_path), **LAYOUT)
    home = Path(layout.checkpoint(1))
    refuse_lost(layout, 1, None)
    for lose in (
        lambda: None,
        lambda: home.mkdir(parents=True),
        lambda: (home / "metadata").write_text('{"id":"x"}'),
    ):
        lose()
        with pytest.raises(TerminalError) as caught:
            refuse_lost(layout, 1, 7)
        assert caught.value.code == "checkpoint-missing"
        assert "7" in caught.value.found
    shutil.rmtree(home)
    make(home, offsets=3, commits=3)  # an older copy
    refuse_lost(layout, 1, 7)
