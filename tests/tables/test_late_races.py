"""Decisions about late rows while others decide and batches find rows, or see them go: what was
shown is decided.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from draindown.cli.program import main
from draindown.recovery import opening
from draindown.recovery.opening import OpenFlow, lease_of
from draindown.sources.tables import late
from draindown.sources.tables.late import Place
from tests.tables.test_late import NOW, Accepting, pinned, seen

OPEN = (0x11, 0x12, 0x21)


class World(Accepting):
    """The flow with three open rows, and what a batch does to them."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.batches = 0
        self.batch(*(seen(number, 1) for number in OPEN))
        self.decided_before = late.newest(self.layout)

    def batch(self, *rows: dict[str, Any]) -> None:
        """Do what a drain does that finds late rows come and gone."""
        self.batches += 1
        pinned(self.layout, self.batches, fill=self.batches == 1)
        write_deltalake(
            self.layout.tables.late.path, pa.Table.from_pylist(list(rows)), mode="append"
        )
        done = CommitProperties(
            app_transactions=[Transaction(self.layout.app_id(1, "rows"), self.batches - 1)]
        )
        write_deltalake(
            self.layout.tables.target.path,
            pa.table({"c": [1]}),
            mode="append",
            commit_properties=done,
        )

    def decide(self, action: late.Action, *numbers: int) -> None:
        """Decide as another person."""
        rows = late.chosen(self.place, [f"{one:04x}" for one in numbers], action)
        late.decide(self.place, rows, action, by="another", note="", at=NOW)

    @property
    def place(self) -> Place:
        return Place(self.layout, 1, self.batches + 1)

    @property
    def decisions(self) -> dict[int, list[tuple[str, str]]]:
        """Each row's decisions in order: who, and what."""
        rows = self.layout.tables.late_decisions.rows(
            "select position, by, action from t order by number"
        )
        found: dict[int, list[tuple[str, str]]] = {}
        for row in rows:
            if row["position"] > 0x10:
                who = "another" if row["by"] == "another" else "me"
                found.setdefault(row["position"], []).append((who, row["action"]))
        return found


def racing(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Have `act` happen right before the next opening of the flow gets its lease: its holder did
    it.
    """
    real, left = opening.open_flow, [act]

    @contextmanager
    def opened(*of: Any, **how: Any) -> Iterator[OpenFlow]:
        left.pop()()
        with real(*of, **how) as flow:
            yield flow

    monkeypatch.setattr(opening, "open_flow", opened)


@pytest.mark.parametrize(
    ("ids", "meanwhile", "code", "discarded"),
    [
        ((), lambda it: it.batch(seen(0x31, 2)), 0, (0x11, 0x12, 0x21)),
        ((), lambda it: it.batch(seen(0x12, 2, "went")), 0, (0x11, 0x21)),
        ((), lambda it: it.decide("released", 0x11), 0, (0x12, 0x21)),
        ((), lambda it: it.decide("released", *OPEN), 0, ()),
        (("0021",), lambda it: it.batch(seen(0x31, 2)), 0, (0x21,)),
        (("002",), lambda it: it.batch(seen(0x22, 2)), 78, ()),
        (("0021",), lambda it: it.batch(seen(0x21, 2, "went")), 78, ()),
        (("0021",), lambda it: it.decide("released", 0x21), 78, ()),
        (("0021",), lambda it: it.decide("discarded", 0x21), 78, ()),
        (("0011", "0021"), lambda it: it.decide("released", 0x21), 78, ()),
    ],
)
def test_only_rows_that_were_shown_and_are_still_open_are_discarded(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    ids: tuple[str, ...],
    meanwhile: Callable[[World], None],
    code: int,
    discarded: tuple[int, ...],
) -> None:
    it, theirs = World(tmp_path), dict[int, list[tuple[str, str]]]()

    def act() -> None:
        meanwhile(it)
        theirs.update(it.decisions)

    racing(monkeypatch, act)
    chosen = [word for one in ids for word in ("--id", one)]
    assert (
        main(["--root", str(tmp_path), "late", "discard", "p", *chosen, "--yes", "--json"]) == code
    )
    out = capsys.readouterr()
    if code:
        assert json.loads(out.err[out.err.index("{\n") :])["error"]["code"] == "unknown-late-row"
    else:
        assert json.loads(out.out) == {"discarded": len(discarded)}
    assert it.decisions == theirs | {number: [("me", "discarded")] for number in discarded}


def test_what_was_applied_stays_applied_whoever_discards_at_the_same_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = World(tmp_path)
    racing(monkeypatch, lambda: it.decide("released", 0x11))
    assert main(["--root", str(tmp_path), "late", "discard", "p", "--yes"]) == 0
    assert late.counts(it.place) == {"open": 0, "released": 1, "discarded": 2, "gone": 0}
    assert late.newest(it.layout) > it.decided_before, "the next drain counts the row"


@pytest.mark.parametrize("verb", ["release", "discard"])
def test_nothing_is_decided_while_a_drain_is_at_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    """A slice pins the newest decision under the lease, so none gets a number while a slice is
    pinned.
    """
    it = World(tmp_path)
    with lease_of(it.layout, it.spec.lease, owner="a drain", run_id="r"):
        assert (
            main(["--root", str(tmp_path), "late", verb, "p", "--id", "0011", "--yes", "--json"])
            == 75
        )
    assert "lease-held" in capsys.readouterr().err and not it.decisions
    assert main(["--root", str(tmp_path), "late", verb, "p", "--id", "0011", "--yes"]) == 0
    assert list(it.decisions) == [0x11]
