"""A document that several hosts change at once: nothing is lost, readers see it whole, and old
revisions go.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from draindown.base.errors import TerminalError
from draindown.lake.documents import Document
from draindown.lake.local_store import LocalStore
from draindown.lake.revisions import KEPT, Revisions
from draindown.lake.store import Entry

ADD = """
import sys
from draindown.lake.revisions import Revisions
document = Revisions(sys.argv[1], lambda found: found["all"], "")
for one in range(int(sys.argv[3])):
    done, own = False, f"{sys.argv[2]}-{one}"
    while not done:
        number, found = document.newest()
        # who is overtaken by many before it ends can't tell whether it was first
        done = own in (found or []) or document.put(number, {"all": [*(found or []), own]})
"""


def of(content: list[Any]) -> dict[str, Any]:
    return {"all": content}


@pytest.fixture
def document(tmp_path: Path) -> Revisions[list[Any]]:
    return Revisions(str(tmp_path / "document"), lambda found: list(found["all"]), "go on without")


def _list_always(
    monkeypatch: pytest.MonkeyPatch, document: Revisions[list[Any]], names: list[str]
) -> None:
    stale = [Entry(f"{document.home}/{name}", 1, datetime.now(UTC)) for name in names]
    monkeypatch.setattr(LocalStore, "list", lambda *_: iter(stale))


def test_nothing_is_there_before_the_first(document: Revisions[list[Any]]) -> None:
    assert document.newest() == (0, None)
    assert not Path(document.home).exists()


def test_of_two_that_read_the_same_revision_one_changes_it(document: Revisions[list[Any]]) -> None:
    assert document.put(0, of(["a"]))
    assert not document.put(0, of(["b"]))
    assert document.newest() == (1, ["a"])
    assert stat.S_IMODE(Path(document.home).stat().st_mode) == 0o700
    assert stat.S_IMODE((Path(document.home) / "0000000001.json").stat().st_mode) == 0o600


def test_changes_by_many_processes_are_all_there(document: Revisions[list[Any]]) -> None:
    command = [sys.executable, "-c", ADD, document.home]
    racing = [subprocess.Popen([*command, f"p{n}", "20"]) for n in range(4)]
    seen: set[str] = set()
    while any(process.poll() is None for process in racing):
        found = set(document.newest()[1] or [])
        assert seen <= found  # a reader beside them never goes back
        seen = found
    assert [process.returncode for process in racing] == [0] * 4
    number, found_at_last = document.newest()
    assert number == 80
    assert sorted(found_at_last or []) == sorted(
        f"p{n}-{one}" for n in range(4) for one in range(20)
    )
    assert len(list(Path(document.home).iterdir())) == KEPT


def test_who_wakes_when_its_number_is_free_again_changes_nothing(
    document: Revisions[list[Any]],
) -> None:
    for number in range(KEPT + 3):
        assert document.put(number, of([number]))
    assert not (Path(document.home) / "0000000002.json").exists()
    assert not document.put(1, of(["late"]))
    assert document.newest() == (KEPT + 3, [KEPT + 2])


@pytest.mark.parametrize("newer", range(KEPT))
def test_who_is_slow_to_end_learns_that_it_changed_what_others_changed_since(
    document: Revisions[list[Any]], monkeypatch: pytest.MonkeyPatch, newer: int
) -> None:
    right = os.link

    def slow(draft: Path, name: str) -> None:
        monkeypatch.setattr(os, "link", right)
        right(draft, name)
        for number in range(1, 1 + newer):
            assert document.put(number, of([number]))

    monkeypatch.setattr(os, "link", slow)
    assert document.put(0, of(["mine"]))
    assert document.newest()[0] == 1 + newer


def test_who_was_stopped_with_a_draft_that_is_gone_tries_again(
    document: Revisions[list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    document.put(0, of(["first"]))
    right = os.link

    def stopped(draft: Path, name: str) -> None:
        monkeypatch.setattr(os, "link", right)
        for number in range(1, KEPT + 3):
            assert document.put(number, of([number]))
        assert not draft.exists()
        right(draft, name)

    monkeypatch.setattr(os, "link", stopped)
    assert not document.put(1, of(["late"]))
    assert document.newest()[1] == [KEPT + 2]


def test_a_listing_older_than_the_file_is_made_up_for(
    document: Revisions[list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    document.put(0, of(["a"]))
    old = ["0000000001.json"]
    document.put(1, of(["b"]))
    _list_always(monkeypatch, document, old)
    assert document.newest() == (2, ["b"])
    assert document.put(2, of(["c"]))


def test_a_reader_whose_revision_goes_meanwhile_reads_the_next(
    document: Revisions[list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    document.put(0, of(["a"]))
    waiting: list[Callable[[], object]] = [
        lambda: [document.put(n, of([n])) for n in range(1, KEPT + 2)]
    ]
    right = Document.parsed

    def parsed(revision: Document, *what: Any, **more: Any) -> Any:
        if waiting:
            waiting.pop()()
        return right(revision, *what, **more)

    monkeypatch.setattr(Document, "parsed", parsed)
    assert document.newest() == (KEPT + 2, [KEPT + 1])


def test_a_listing_that_names_what_is_gone_for_good_is_an_error(
    document: Revisions[list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _list_always(monkeypatch, document, ["0000000007.json"])
    with pytest.raises(OSError, match="0000000007"):
        document.newest()


@pytest.mark.parametrize("when", ["before the link", "after it"])
def test_killed_while_it_changes_leaves_a_whole_document(
    document: Revisions[list[Any]], when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    document.put(0, of(["a"]))
    right = os.link

    def killed(*paths: Any) -> None:
        if when == "after it":
            right(*paths)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "link", killed)
    with pytest.raises(KeyboardInterrupt):
        document.put(1, of(["b"]))
    monkeypatch.undo()
    number, found = document.newest()
    assert (number, found) == ((1, ["a"]) if when == "before the link" else (2, ["b"]))
    assert document.put(number, of(["c"]))


def test_what_is_torn_is_told_and_the_one_before_counts_without_it(
    document: Revisions[list[Any]],
) -> None:
    document.put(0, of(["a"]))
    torn = Path(document.home) / "0000000002.json"
    torn.write_text("[1,")
    with pytest.raises(TerminalError) as caught:
        document.newest()
    assert caught.value.code == "state-damaged"
    subprocess.run(caught.value.next[-1], shell=True, check=True)
    assert document.newest() == (1, ["a"])
    for number in range(1, KEPT + 4):
        assert document.put(number, of([number]))
    assert Path(f"{torn}.damaged").exists()


def test_threads_of_one_process_lose_nothing_either(document: Revisions[list[Any]]) -> None:
    barrier = threading.Barrier(4)

    def add(name: int) -> None:
        barrier.wait()
        done = False
        while not done:
            number, found = document.newest()
            done = document.put(number, of([*(found or []), name]))

    threads = [threading.Thread(target=add, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(document.newest()[1] or []) == [0, 1, 2, 3]
