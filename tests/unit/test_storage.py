"""Storage that takes nothing more is told by name, whichever engine met it and whatever it called
it.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from draindown.base.errors import TerminalError
from draindown.base.exits import Exit, exit_for
from draindown.lake import storage
from draindown.lake.home import FlowHome


class _Java(Exception):
    """As py4j's errors are: all that is known is text."""


JAVA = "An error occurred while calling o1.start.\n: java.io.IOException: {}\n\tat org.apache.spark.X.y(X.scala:1)"
DELTALAKE = "Failed to commit transaction: Generic LocalFileSystem error: Unable to open file /lake/x: {} (os error {})"

FULL = (
    OSError(errno.ENOSPC, "No space left on device"),
    OSError(errno.EDQUOT, "Disk quota exceeded"),
    _Java(JAVA.format("No space left on device")),
    _Java(DELTALAKE.format("No space left on device", 28)),
)
READ_ONLY = (
    OSError(errno.EROFS, "Read-only file system", "/lake/x"),
    _Java(JAVA.format("/lake/x (Read-only file system)")),
    _Java(DELTALAKE.format("Read-only file system", 30)),
)
DENIED = (
    PermissionError(errno.EACCES, "Permission denied", "/lake/x"),
    _Java(JAVA.format("java.nio.file.AccessDeniedException: /lake/x")),
    _Java(DELTALAKE.format("Permission denied", 13)),
)


@pytest.fixture
def layout(tmp_path: Path) -> FlowHome:
    (tmp_path / "lake/tables/t/_delta_log").mkdir(parents=True)
    return FlowHome(str(tmp_path / "lake"), "p", "f", "t")


def refusal(error: Exception, layout: FlowHome | None) -> TerminalError | None:
    return storage.refusal(error, layout, tried="drain", changed="whole batches only")


@pytest.mark.parametrize("error", FULL, ids=str)
def test_a_full_disk_is_named_though_there_is_room_by_now(
    error: Exception, layout: FlowHome
) -> None:
    told = refusal(error, layout)
    assert told is not None and (told.code, exit_for(told)) == ("disk-full", Exit.NEEDS_PERSON)
    assert told.next[0].startswith("df -h ") and told.in_order and "draindown run p" in told.next[1]


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), RuntimeError("os error 28)")], ids=str
)
def test_no_disk_is_blamed_where_none_is_known(error: Exception) -> None:
    """At the edge of a command no flow is at hand: any disk may be the full one."""
    told = storage.refusal(error, None, tried="t", changed="c", again="draindown run p")
    assert told is not None and told.code == "disk-full" and "free at" not in told.found
    assert told.next == ("df -h", "draindown run p   # once there is room")


@pytest.mark.parametrize("error", READ_ONLY, ids=str)
def test_a_file_system_that_is_read_only_is_named(error: Exception, layout: FlowHome) -> None:
    told = refusal(error, layout)
    assert told is not None and (told.code, exit_for(told)) == (
        "lake-not-writable",
        Exit.NEEDS_PERSON,
    )


@pytest.mark.parametrize("error", DENIED, ids=str)
def test_what_is_denied_elsewhere_is_not_said_of_the_lake(
    error: Exception, layout: FlowHome
) -> None:
    told = refusal(error, layout)
    assert told is not None and told.code == "permission-denied"


def deny(monkeypatch: pytest.MonkeyPatch, directory: str) -> None:
    """As for a user who is not root."""
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != directory and real(path, mode))


@pytest.mark.parametrize(
    "error", [*DENIED, _Java(JAVA.format("Mkdirs failed to create /lake/x"))], ids=str
)
def test_the_directory_that_takes_no_file_is_named(
    error: Exception, layout: FlowHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    deny(monkeypatch, f"{layout.tables.target.path}/_delta_log")
    told = refusal(error, layout)
    assert told is not None and told.code == "lake-not-writable"
    assert f"{layout.tables.target.path}/_delta_log is not writable" in told.found
    assert told.next[0] == f"ls -ld {layout.tables.target.path}/_delta_log"


def test_words_of_another_language_are_made_up_for_by_looking(
    layout: FlowHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = _Java(JAVA.format("Kein Speicherplatz mehr auf dem Gerät verfügbar"))
    assert refusal(foreign, layout) is None
    usage = shutil.disk_usage(layout.lake)._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    told = refusal(foreign, layout)
    assert told is not None and told.code == "disk-full"


class _Flags(NamedTuple):
    f_flag: int = os.ST_RDONLY


def test_a_lake_that_is_mounted_read_only_is_named_with_the_way_to_look(
    layout: FlowHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: _Flags())
    told = refusal(READ_ONLY[1], layout)
    assert told is not None and told.found.startswith(
        f"{layout.lake} is not writable: its file system is mounted"
    )
    assert told.next[0] == f"findmnt --target {layout.lake}"


def test_a_cause_counts_and_so_does_what_tidying_up_hid(layout: FlowHome) -> None:
    try:
        try:
            raise FULL[2]
        finally:
            raise ValueError("could not unpersist")
    except ValueError as error:
        told = refusal(error, layout)
    assert told is not None and told.code == "disk-full"


@pytest.mark.parametrize(
    "error", [ValueError("x"), _Java(JAVA.format("broken pipe")), ConnectionRefusedError()]
)
def test_other_errors_are_left_as_they_are(error: Exception, layout: FlowHome) -> None:
    assert refusal(error, layout) is None


@pytest.mark.parametrize(
    ("error", "code"), [(FULL[0], "disk-full"), (DENIED[0], "permission-denied")]
)
def test_without_a_flow_the_error_itself_is_all_there_is(error: Exception, code: str) -> None:
    told = refusal(error, None)
    assert told is not None and told.code == code


def test_a_block_raises_the_named_error_and_others_as_they_are(layout: FlowHome) -> None:
    with pytest.raises(TerminalError) as caught, storage.named(layout, tried="plan"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.code == "disk-full" and isinstance(caught.value.__cause__, OSError)
    with pytest.raises(ValueError, match="x"), storage.named(layout, tried="plan"):
        raise ValueError("x")


NO_DIRECTORY = (
    NotADirectoryError(errno.ENOTDIR, "Not a directory", "/lake/x"),
    _Java(JAVA.format("Mkdirs failed to create file:/lake/x")),
    _Java(DELTALAKE.format("Not a directory", 20)),
)


@pytest.mark.parametrize("error", NO_DIRECTORY, ids=str)
def test_a_lake_that_is_a_file_is_named(error: Exception, tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("")
    told = refusal(error, FlowHome(str(tmp_path / "lake"), "p", "f", "t"))
    assert told is not None and (told.code, exit_for(told)) == (
        "not-a-directory",
        Exit.NEEDS_PERSON,
    )
    assert told.next[0] == f"ls -ld {tmp_path}/lake"


@pytest.mark.parametrize("below", ["", "/below"])
def test_what_looks_at_a_lake_refuses_a_file_in_its_place(below: str, tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("")
    with pytest.raises(TerminalError) as caught:
        storage.refuse_file_as_lake(
            f"{tmp_path}/lake{below}", tried="plan", again="draindown plan p"
        )
    assert caught.value.code == "not-a-directory"
    storage.refuse_file_as_lake(f"{tmp_path}/other/lake", tried="plan", again="draindown plan p")


def test_a_file_system_without_a_size_is_not_called_full(
    layout: FlowHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = shutil.disk_usage(layout.lake)._replace(total=0, used=0, free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: nothing)
    told = refusal(PermissionError(errno.EPERM, "Operation not permitted", "/sys/lake"), layout)
    assert (
        told is not None
        and told.code == "permission-denied"
        and told.found.endswith("Operation not permitted")
    )


def test_what_an_error_tells_comes_before_what_the_directories_show(
    layout: FlowHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(layout.lake)._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    told = refusal(DENIED[0], layout)
    assert told is not None and told.code == "permission-denied"


def test_an_unwritable_lake_is_found_without_writing(
    layout: FlowHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert storage.unwritable(layout) is None
    deny(monkeypatch, layout.lake)
    told = storage.unwritable(layout)
    assert (
        told is not None
        and told.code == "lake-not-writable"
        and told.next[0] == f"ls -ld {layout.lake}"
    )


def test_a_directory_of_the_flow_that_is_a_file_is_found(layout: FlowHome) -> None:
    (Path(layout.lake) / "_draindown").write_text("")
    told = storage.unwritable(layout)
    assert told is not None and told.code == "not-a-directory"
    assert (
        told.found
        == f"{layout.lake}/_draindown is a file, where a directory is needed for {layout.home}"
    )
