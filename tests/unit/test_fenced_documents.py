"""Documents that only the holder of a lease changes: who has lost it is refused, wherever it froze."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from draindown.base.errors import TransientError
from draindown.flow import generations
from draindown.flow.generations import Card
from draindown.lake import stores
from draindown.lake.documents import encode
from draindown.lake.fenced import FencedDocument
from draindown.lake.home import FlowHome
from draindown.lake.memory_store import MemoryStore
from draindown.lake.revisions import KEPT
from draindown.lake.store import Entry, Tag
from draindown.recovery import fencing, rebuild
from draindown.recovery.rebuild import Rebuild

HOME = "memory://lake/generation"
BEGUN = Rebuild(2, 1, "then", "me", "c")
CARD = Card(2, 1, "then", "me")


class Freezing(MemoryStore):
    """Does something else right before its call number `at`, once."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.at = 0, -1
        self.meanwhile: Callable[[], None] = lambda: None

    def _count(self) -> None:
        self.calls += 1
        if self.calls == self.at:
            self.at = -1
            self.meanwhile()

    def read(self, key: str) -> tuple[bytes, Tag] | None:
        self._count()
        return super().read(key)

    def create(self, key: str, content: bytes) -> Tag | None:
        self._count()
        return super().create(key, content)

    def list(self, prefix: str, after: str | None = None) -> Iterator[Entry]:
        self._count()
        return super().list(prefix, after)

    def freeze(self, at: int, meanwhile: Callable[[], None]) -> None:
        self.calls, self.at, self.meanwhile = 0, at, meanwhile


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Freezing:
    found = Freezing()
    monkeypatch.setitem(stores.STORES, "memory", found)
    return found


def document(epoch: int = 0) -> FencedDocument:
    return FencedDocument(HOME, "p", epoch)


def home(epoch: int = 0) -> FlowHome:
    return FlowHome("memory://lake", "p", "f", "t").held(epoch)


def lost(act: Callable[[], object]) -> bool:
    """Whether `act` ends because the lease is lost."""
    try:
        act()
    except TransientError as error:
        assert error.code == "lease-lost" and error.next
        return True
    return False


def test_a_document_is_what_was_written_last(store: Freezing) -> None:
    one = document()
    assert (one.read(), one.exists, one.path) == (None, False, f"{HOME}/0000000001.json")
    one.delete()
    assert not list(store.list(HOME)), "there was nothing"
    one.write({"n": 1})
    one.write({"n": 2})
    assert (one.read(), one.exists, one.path) == ({"n": 2}, True, f"{HOME}/0000000002.json")
    one.delete()
    assert (one.read(), one.exists) == (None, False)
    one.write({"n": 3})
    assert document(7).read() == {"n": 3}


def test_old_revisions_go(store: Freezing) -> None:
    for n in range(20):
        document(1).write({"n": n})
    assert len(list(store.list(HOME))) == KEPT and document().read() == {"n": 19}


def test_a_torn_revision_is_told_and_healed_by_the_next_one(store: Freezing) -> None:
    document(3).write({"n": 1})
    store.put(f"{HOME}/0000000002.json", encode({"epoch": 3, "n": 2})[:9])
    assert document().exists
    with pytest.raises(ValueError, match="Unterminated"):
        document().read()
    document(3).fence()
    assert document().path.endswith("2.json"), "it is left for a person"
    assert lost(lambda: document(2).write({"n": 3})), "the revision before it has an epoch"
    document(3).write({"n": 3})
    assert document().read() == {"n": 3}


def test_a_view_reads_it_once_and_again_what_it_wrote(store: Freezing) -> None:
    live, view = home(), home().view()
    live.generation.write({"generation": 2})
    assert view.generation.read() == {"generation": 2}
    calls = store.calls
    assert view.generation.exists and store.calls == calls
    live.generation.write({"generation": 3})
    assert view.generation.read() == {"generation": 2}
    view.generation.write({"generation": 4})
    assert view.generation.read() == live.generation.read() == {"generation": 4}


def test_a_local_lease_keeps_the_epoch_that_is_there(store: Freezing) -> None:
    """It excludes the shared form; a driver of an earlier epoch stays refused."""
    document(2).write({"n": 1})
    document().write({"n": 2})
    assert lost(lambda: document(1).write({"n": 3})) and document().read() == {"n": 2}
    document(2).write({"n": 4})
    assert document().read() == {"n": 4}


WRITES: Mapping[str, tuple[Callable[[FlowHome], object], str]] = {
    "a reset": (lambda at: generations.make_live(at, CARD), "generation"),
    "an undo": (lambda at: generations.go_back_to(at, 1, without=["x"], by="me"), "generation"),
    "a discard": (
        lambda at: generations.leave_out(at, ["y"], by="me", at=generations.now()),
        "generation",
    ),
    "a rebuild begins": (lambda at: generations.name_live(at, 1), "generation"),
    "its note": (lambda at: at.rebuild.write({"generation": 2}), "rebuild"),
    "its end": (lambda at: at.rebuild.delete(), "rebuild"),
    "an abort": (lambda at: rebuild.give_up(at, BEGUN), "rebuild"),
    "its swap": (lambda at: generations.take_place(at.beside(2)), "generation"),
    "its tables": (lambda at: generations.begin_staged(at.beside(2), CARD), "staged"),
}
BEFORE: list[dict[str, Any] | None] = [None, {"generation": 1, "cards": {}}]
NOTE = {"generation": 2, "previous": 1, "at": "t", "by": "me", "contract": "c", "foreign": []}


def of(layout: FlowHome, name: str) -> FencedDocument:
    if name == "staged":
        return layout.beside(2).generation
    return layout.rebuild if name == "rebuild" else layout.generation


def begun(name: str, content: dict[str, Any] | None) -> None:
    """What an earlier driver, of epoch 1, left."""
    if content is not None:
        of(home(1), name).write(NOTE if name == "rebuild" else content)


def take_over(name: str) -> None:
    """What the next driver does to each document, as `fencing.write` does."""
    of(home(2), name).fence()


@pytest.mark.parametrize("content", BEFORE, ids=["none", "some"])
@pytest.mark.parametrize("what", WRITES)
def test_who_froze_before_it_wrote_is_refused_wherever_it_was(
    store: Freezing, what: str, content: dict[str, Any] | None
) -> None:
    write, name = WRITES[what]
    for at in range(1, 60):
        store.__init__()  # type: ignore[misc]
        begun(name, content)
        before = of(home(), name).read()
        kept = list[dict[str, Any] | None]()

        def other(kept: list[dict[str, Any] | None] = kept) -> None:
            take_over(name)
            kept.append(of(home(), name).read())

        store.freeze(at, other)
        refused = lost(lambda: write(home(1)))
        if not kept:  # it ended before: the next driver finds what it wrote
            assert at > 3 or (what == "its end" and content is None)
            break
        after = of(home(), name).read()
        # the next driver has read what stays: either nothing of this write, or all of it
        assert after == kept[0], (at, refused)
        assert refused or after != before or what in ("its end", "a rebuild begins", "its swap")
        assert not refused or kept[0] == before
        if after is not None or what != "its end":
            assert lost(lambda: write(home(1))), "and from now on"
        write(home(2))
    else:
        pytest.fail("it makes more calls than were tried")


@pytest.mark.parametrize("content", BEFORE, ids=["none", "some"])
@pytest.mark.parametrize("what", WRITES)
def test_who_writes_while_another_one_takes_over_is_seen_or_refused(
    store: Freezing, what: str, content: dict[str, Any] | None
) -> None:
    write, name = WRITES[what]
    for at in range(1, 60):
        store.__init__()  # type: ignore[misc]
        begun(name, content)
        before, wrote = of(home(), name).read(), list[bool]()
        store.freeze(at, lambda wrote=wrote: wrote.append(not lost(lambda: write(home(1)))))  # type: ignore[misc]
        take_over(name)
        if not wrote:
            assert at > 3
            break
        after = of(home(), name).read()
        assert wrote[0] or after == before, "what was refused changed nothing"
        if after is not None:
            assert lost(lambda: write(home(1)))
        assert of(home(), name).read() == after
    else:
        pytest.fail("it makes more calls than were tried")


def test_a_fence_is_in_each_document_of_the_flow(tmp_path: Path) -> None:
    layout = FlowHome(str(tmp_path / "lake"), "p", "f", "t")
    layout.make()
    first, second = layout.held(1), layout.held(2)
    generations.name_live(first, 1)
    first.rebuild.write(NOTE)
    generations.begin_staged(first.beside(2), CARD)
    fencing.write(layout, 2, check=lambda: None)
    for write in (
        lambda at: generations.make_live(at, CARD),
        lambda at: rebuild.give_up(at, BEGUN),
        lambda at: generations.begin_staged(at.beside(2), CARD),
    ):
        assert lost(lambda write=write: write(first))  # type: ignore[misc]
        write(second)
    assert generations.generation(layout) == 2


def test_a_fence_is_where_there_is_no_document_yet(tmp_path: Path) -> None:
    layout = FlowHome(str(tmp_path / "lake"), "p", "f", "t")
    layout.make()
    fencing.write(layout, 2, check=lambda: None)
    assert generations.generation(layout) == 1 and rebuild.unfinished(layout) is None
    assert lost(lambda: generations.make_live(layout.held(1), CARD))
    assert lost(lambda: layout.held(1).rebuild.write(NOTE))
    assert generations.generation(layout) == 1 and rebuild.unfinished(layout) is None
