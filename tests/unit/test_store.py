"""The contract of a store, passed by each one; and what the local one owes its files."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draindown.lake.local_store import LocalStore
from draindown.lake.memory_store import MemoryStore
from draindown.lake.store import Store
from draindown.lake.stores import holds_any, names_under, store_of


@pytest.fixture(params=[LocalStore, MemoryStore])
def store(request: pytest.FixtureRequest) -> Store:
    made: Store = request.param()
    return made


@pytest.fixture
def home(tmp_path: Path) -> str:
    return str(tmp_path / "home")


def keys(store: Store, *asked: str) -> list[str]:
    return [entry.key for entry in store.list(*asked)]


def at_once(what: Callable[[int], Any], threads: int = 8) -> list[Any]:
    """What each of several threads returns that begin together."""
    barrier, found = threading.Barrier(threads), list[Any]()

    def run(number: int) -> None:
        barrier.wait()
        found.append(what(number))

    every = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in every:
        thread.start()
    for thread in every:
        thread.join()
    assert len(found) == threads
    return found


def test_what_is_put_is_read_and_what_is_deleted_is_not(store: Store, home: str) -> None:
    key = f"{home}/a/b.json"
    assert store.read(key) is None
    assert store.read(f"{key}/below") is None
    tag = store.put(key, b"one")
    assert store.read(key) == (b"one", tag)
    other = store.put(key, b"two")
    assert (store.read(key), other != tag) == ((b"two", other), True)
    store.delete(key)
    assert (store.read(key), keys(store, home)) == (None, [])
    store.delete(key)
    assert store.put(key, b"") == (store.read(key) or ("", ""))[1]


def test_a_prefix_goes_with_all_that_is_under_it_and_nothing_else(store: Store, home: str) -> None:
    gone = [f"{home}/a/b.json", f"{home}/a/b/c.json"]
    kept = [f"{home}/a.json", f"{home}/ab/c.json"]
    for key in [*gone, *kept]:
        store.put(key, b"one")
    store.delete_prefix(f"{home}/a/")
    assert keys(store, f"{home}/") == kept
    store.delete_prefix(f"{home}/a/")
    assert store.create(gone[0], b"two") is not None


def test_many_that_delete_a_prefix_at_once_all_end(store: Store, home: str) -> None:
    for number in range(200):
        store.put(f"{home}/a/{number % 7}/{number}.json", b"one")
    at_once(lambda _: store.delete_prefix(f"{home}/a/"))
    assert keys(store, home) == []


def test_a_listing_looks_only_where_the_prefix_may_be(store: Store, home: str) -> None:
    for key in ("a/0.json", "a/0/x.json", "a/rows/0.json", "ab/0.json"):
        store.put(f"{home}/{key}", b"one")
    assert keys(store, f"{home}/a/0") == [f"{home}/a/0.json", f"{home}/a/0/x.json"]
    assert keys(store, f"{home}/a") == [
        f"{home}/{key}" for key in ("a/0.json", "a/0/x.json", "a/rows/0.json", "ab/0.json")
    ]


def test_a_key_is_created_once(store: Store, home: str) -> None:
    key = f"{home}/a.json"
    tag = store.create(key, b"one")
    assert (store.read(key), store.create(key, b"two"), store.create(key, b"one")) == (
        (b"one", tag),
        None,
        None,
    )
    store.delete(key)
    assert store.create(key, b"two") is not None
    assert keys(store, home) == [key]


def test_of_many_creators_one_succeeds_and_its_content_is_whole(store: Store, home: str) -> None:
    for round_ in range(20):
        key = f"{home}/{round_}"
        tags = at_once(
            lambda number, key=key: (number, store.create(key, str(number).encode() * 10_000))
        )
        [(winner, tag)] = [(number, tag) for number, tag in tags if tag is not None]
        assert store.read(key) == (str(winner).encode() * 10_000, tag)


def test_a_listing_is_by_key_from_a_prefix_and_after_a_key(store: Store, home: str) -> None:
    before = datetime.now(UTC) - timedelta(seconds=5)
    names = ["a/2", "a-b/1", "a/10", "a/1", "b", "a/sub/x", "ab/1"]
    for name in names:
        store.put(f"{home}/{name}", name.encode())
    listed = [key.removeprefix(f"{home}/") for key in keys(store, f"{home}/")]
    assert listed == sorted(names)
    assert keys(store, f"{home}/a/") == [
        f"{home}/{name}" for name in ("a/1", "a/10", "a/2", "a/sub/x")
    ]
    assert keys(store, f"{home}/a/1") == [f"{home}/a/1", f"{home}/a/10"]
    assert keys(store, f"{home}/a/", f"{home}/a/10") == [f"{home}/a/2", f"{home}/a/sub/x"]
    assert keys(store, f"{home}/none/") == []
    [entry] = store.list(f"{home}/b")
    assert (entry.size, before < entry.modified < before + timedelta(minutes=1)) == (1, True)


def test_readers_see_whole_contents_while_others_write(store: Store, home: str) -> None:
    key, stop, seen = f"{home}/a", threading.Event(), set[bytes]()
    store.put(key, b"0" * 100_000)

    def look() -> None:
        while not stop.is_set():
            found = store.read(key)
            assert found is not None
            seen.add(bytes(set(found[0])) if len(found[0]) == 100_000 else b"torn")

    reader = threading.Thread(target=look)
    reader.start()
    for number in range(50):
        store.put(key, str(number % 10).encode() * 100_000)
    stop.set()
    reader.join()
    assert seen and all(len(one) == 1 for one in seen)


def test_files_are_for_their_owner_and_nothing_else_is_left(tmp_path: Path) -> None:
    store, key = LocalStore(), str(tmp_path / "home" / "a.json")
    before = os.umask(0)
    try:
        store.create(key, b"1")
        store.put(key, b"2")
    finally:
        os.umask(before)
    assert stat.S_IMODE(Path(key).stat().st_mode) == 0o600
    assert stat.S_IMODE(Path(key).parent.stat().st_mode) == 0o700
    assert [path.name for path in Path(key).parent.iterdir()] == ["a.json"]


_DIES = """
import os, signal, sys
from draindown.lake import local_store
os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)
getattr(local_store.LocalStore(), sys.argv[1])(*[sys.argv[2], b"new"])
"""


@pytest.mark.parametrize("how", ["put", "create"])
def test_a_writer_that_is_killed_leaves_what_was_there_and_holds_up_nobody(
    tmp_path: Path, how: str
) -> None:
    store, key = LocalStore(), str(tmp_path / "home" / "a.json")
    tag = None if how == "create" else store.put(key, b"old")
    done = subprocess.run([sys.executable, "-c", _DIES, how, key], check=False)
    assert done.returncode == -signal.SIGKILL
    assert store.read(key) == (None if tag is None else (b"old", tag))
    assert keys(store, str(tmp_path)) == ([] if tag is None else [key])
    after = store.create(key, b"next") if tag is None else store.put(key, b"next")
    assert store.read(key) == (b"next", after)
    store.delete(key)
    assert [path.name for path in Path(key).parent.glob("*.tmp")] == []


def test_a_name_as_long_as_the_file_system_takes_is_a_key(tmp_path: Path) -> None:
    store, key = LocalStore(), str(tmp_path / ("[" * 250))
    store.put(key, b"1")
    assert keys(store, str(tmp_path)) == [key]
    store.delete(key)
    assert keys(store, str(tmp_path)) == []


def test_the_scheme_of_a_place_chooses_its_store(home: str) -> None:
    held = "memory://test_store/a/b.json"
    tag = store_of(held).create(held, b"1")
    assert tag is not None and store_of("memory://test_store").read(held) == (b"1", tag)
    store_of(held).delete(held)
    assert isinstance(store_of(home), LocalStore) and store_of(home).read(held) is None
    with pytest.raises(OSError, match="no store keeps it: 'abfss://a/b'"):
        store_of("abfss://a/b")


SEGMENTS = st.text(alphabet="ab-.0~", min_size=1, max_size=3).filter(lambda one: one[0] != ".")
KEYS = st.lists(st.lists(SEGMENTS, min_size=1, max_size=3).map("/".join), max_size=12)


@given(names=KEYS, prefix=st.sampled_from(["", "a", "a/", "a-", "b/a"]), after=SEGMENTS | st.none())
def test_a_listing_is_that_of_sorted_keys(names: list[str], prefix: str, after: str | None) -> None:
    with tempfile.TemporaryDirectory() as home:
        keys = {f"{home}/{name}" for name in names}
        # on a file system no key is the directory of another one
        kept = {key for key in keys if not any(one.startswith(f"{key}/") for one in keys)}
        local, memory = LocalStore(), MemoryStore()
        for key in kept:
            local.put(key, b"1")
            memory.put(key, b"1")
        begin = f"{home}/{prefix}"
        last = None if after is None else f"{home}/{after}"
        wanted = sorted(
            key for key in kept if key.startswith(begin) and (last is None or key > last)
        )
        for store in (local, memory):
            assert [entry.key for entry in store.list(begin, last)] == wanted
        under = {key.removeprefix(f"{home}/") for key in kept}
        segments = {name.partition("/")[0] + "/" * ("/" in name) for name in under}
        assert list(names_under(f"{home}/")) == sorted(segments)
        assert holds_any(f"{home}/") == bool(kept)


def test_the_first_key_costs_no_more_where_there_are_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore()
    for number in range(9):
        store.put(str(tmp_path / f"{number}" / "a.json"), b"1")
    opened: list[str] = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: opened.append(path) or scandir(path))
    assert next(store.list(f"{tmp_path}/")).key == str(tmp_path / "0" / "a.json")
    assert next(store.list(f"{tmp_path}/", f"{tmp_path}/7/~")).key == str(tmp_path / "8" / "a.json")
    assert (
        len(opened) == 5
    )  # the directory and that of the first key; past the key the way down to it
