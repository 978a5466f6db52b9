"""Change events as hypothesis makes them: few keys and sequences, so that everything collides, cut into files and drains."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from tests.model import Change, Value

IDS = ("k", "k1", "k2", "ä2", "K1")
"""The second character is the partition of flow `derived`; the first id has none, so its partition is NULL."""

BAD: tuple[tuple[bytes, str], ...] = (
    (b"not json", "malformed"),
    (b'{"id": "k1", "seq": 1}{"id": "k2", "seq": 1}', "malformed"),
    (b'{"id": "k1", "seq": 1, "b": "\xff"}', "malformed"),
    (b'{"id": "k1", "region": "eu", "part": "p1"}', "missing:seq"),
    (b'{"id": "k1", "region": "eu", "part": "p1", "seq": "x"}', "type:seq"),
    (b'{"id": "k1", "region": "eu", "part": "p1", "seq": 1, "a": "many"}', "type:a"),
    (b'{"id": "k1", "region": "eu", "part": "p1", "seq": 99, "a": -1}', "rule:sane"),
)


@dataclass(frozen=True)
class Line:
    """One line of a file. `change` if it is good, `reason` if it is refused, neither if it is blank."""

    raw: bytes
    change: Change | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Drain:
    """One delivery and how it is drained: `files` arrive, then a drain.

    `fault`: the step at which its first batch dies before it is drained again; `replay`: whether its last batch is run
    once more because the checkpoint forgot it.
    """

    files: tuple[tuple[Line, ...], ...]
    fault: str | None = None
    replay: bool = False


@dataclass(frozen=True)
class Case:
    """Everything that happens to one table."""

    drains: tuple[Drain, ...]
    files_per_batch: int

    @property
    def lines(self) -> list[Line]:
        return [line for drain in self.drains for file in drain.files for line in file]

    @property
    def changes(self) -> list[Change]:
        return [line.change for line in self.lines if line.change]

    @property
    def refused(self) -> list[str]:
        return sorted(line.reason for line in self.lines if line.reason)


STEPS = ("read", "quarantined", "remembered", "merged", "recorded")

_SMALL = st.sampled_from([None, 0, 1, 2])
_TEXT = st.sampled_from([None, "", "x", "y", "ü\n", "\U0001f6eb"])


@st.composite
def change_lines(draw: st.DrawFn, keys: tuple[str, ...] = ("id",)) -> Line:
    """A good row of the flows in tests/spark/test_property.py, deletes often with nothing but key and sequence."""
    name = draw(st.sampled_from(IDS))
    region = draw(st.sampled_from(["eu", "us"])) if "region" in keys else None
    sequence = draw(st.integers(1, 4))
    known: dict[str, Any] = {"id": name, "region": region} if region else {"id": name}
    key: tuple[Value, ...] = tuple(known[k] for k in keys)
    if draw(st.integers(0, 3)) == 0:
        more = draw(st.sampled_from([{}, {"a": "no number"}, {"b": "gone", "part": f"p{name}"}]))
        return _line(known | {"seq": sequence, "op": "d"} | more, Change(key, sequence, delete=True))
    a, b, extra = draw(_SMALL), draw(_TEXT), draw(st.sampled_from([None, "1"]))
    content: dict[str, Value] = {"op": draw(st.sampled_from([None, "u"])), "a": a, "b": b, "part": f"p{name}"}
    row = known | {"seq": sequence} | content | ({"extra": extra} if extra else {})
    rescued = json.dumps({"extra": extra}, separators=(",", ":")) if extra else None
    return _line(row, Change(key, sequence, content=content | {"_rescued": rescued}))


def _line(row: dict[str, Any], change: Change) -> Line:
    return Line(json.dumps(row, ensure_ascii=False).encode(), change)


def lines(keys: tuple[str, ...] = ("id",)) -> st.SearchStrategy[Line]:
    """Good rows, sometimes a refused or a blank one."""
    bad = st.sampled_from(BAD).map(lambda pair: Line(pair[0], reason=pair[1]))
    blank = st.sampled_from([b"", b"  ", b"\t"]).map(Line)
    good = change_lines(keys)
    return st.one_of(good, good, good, good, good, good, bad, blank)


@st.composite
def cases(draw: st.DrawFn, keys: tuple[str, ...] = ("id",)) -> Case:
    """At most 40 lines in at most three drains; rows and files come twice now and then."""
    everything = draw(st.lists(lines(keys), min_size=1, max_size=32))
    twice = draw(st.lists(st.sampled_from(everything), max_size=4))
    shuffled = draw(st.permutations(everything + twice))
    files = _cut(shuffled, draw(st.lists(st.integers(1, len(shuffled)), max_size=5)))
    if draw(st.booleans()):
        again = draw(st.sampled_from(files))
        files.append(again[: 40 - len(shuffled)])
    deliveries = _cut(files, draw(st.lists(st.integers(1, len(files)), max_size=2)))
    drains = [Drain(tuple(tuple(file) for file in group)) for group in deliveries]
    faults = draw(st.lists(st.sampled_from([None, None, *STEPS]), min_size=len(drains), max_size=len(drains)))
    replays = draw(st.lists(st.sampled_from([False, False, True]), min_size=len(drains), max_size=len(drains)))
    drains = [replace(d, fault=f, replay=r) for d, f, r in zip(drains, faults, replays, strict=True)]
    return Case(tuple(drains), draw(st.integers(1, 4)))


def _cut(items: list[Any], at: list[int]) -> list[list[Any]]:
    edges = sorted({0, len(items), *at})
    return [items[i:j] for i, j in zip(edges, edges[1:], strict=False)]
