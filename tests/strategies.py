"""Change events: few keys and sequences, so that everything collides, dealt to files and drains."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from random import Random
from typing import Any

from hypothesis import strategies as st

from tests.model import Change, Value

IDS = ("k", "k1", "k2", "ä2", "K1", "z")
"""A digit that stands second is the partition that a transform derives; without one it is empty,
for z NULL.
"""

BAD: tuple[tuple[bytes, str], ...] = (
    (b"not json", "malformed"),
    (b'{"id": "k1", "seq": 1}{"id": "k2", "seq": 1}', "malformed"),
    (b'{"id": "k1", "seq": 1, "b": "\xff"}', "malformed"),
    (b'{"id": "k1", "region": "eu", "part": "p1"}', "not_null:seq"),
    (b'{"id": "k1", "region": "eu", "part": "p1", "seq": "x"}', "type:seq"),
    (b'{"id": "k1", "region": "eu", "part": "p1", "seq": 1, "a": "many"}', "type:a"),
    (b'{"id": "k1", "region": "eu", "part": "p1", "seq": 99, "a": -1}', "rule:sane"),
)


@dataclass(frozen=True)
class Line:
    """One line of a file. `change` if it is good, `reason` if it is refused, neither if it is
    blank.
    """

    raw: bytes
    change: Change | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Drain:
    """One delivery and how it is drained: `files` arrive, then a drain.

    `fault`: the step at which its first batch dies before it is drained again; `replay`: whether
    its last batch is run once more because the checkpoint forgot it.
    """

    files: tuple[tuple[Line, ...], ...] = field(repr=False)
    fault: str | None = None
    replay: bool = False


@dataclass(frozen=True)
class Case:
    """Everything that happens to one table."""

    drains: tuple[Drain, ...]
    files_per_batch: int

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What hypothesis prints: the plan, not a thousand lines."""
        printer.text(repr(self))

    @property
    def lines(self) -> list[Line]:
        return [line for drain in self.drains for file in drain.files for line in file]

    @property
    def changes(self) -> list[Change]:
        return [line.change for line in self.lines if line.change]

    @property
    def refused(self) -> list[str]:
        return sorted(line.reason for line in self.lines if line.reason)


STEPS = ("remembered", "merged", "read", "quarantined", "recorded")

_MORE_BAD = (b'{"id": "k1", "region": "", "part": "p1", "seq": 1}', "not_null:region")
"""Refused where `region` is a key and a partition."""


@st.composite
def cases(draw: st.DrawFn, keys: tuple[str, ...] = ("id",), cells: int = 40) -> Case:
    """Many small histories at once, each of keys of its own, dealt to the same few files and
    drains.

    A drain costs seconds, however little is in it: `cells` histories share one, each as independent
    as if it were alone. Rows and whole files come twice now and then. The simplest case, which
    hypothesis tries first, is two files in a drain each, the second of which dies at `remembered`.
    """
    rng = Random(draw(st.integers(0, 2**32 - 1)))
    counts = draw(st.lists(st.integers(1, 3), min_size=2, max_size=3))
    files: list[list[Line]] = [[] for _ in range(sum(counts))]
    for cell in range(cells):
        for line in _history(rng, cell, keys):
            rng.choice(files).append(line)
    for file in files:
        rng.shuffle(file)
    files = [file or [Line(b"")] for file in files]
    if draw(st.booleans()):
        files[-1] = list(rng.choice(files))
    edges = list(accumulate(counts, initial=0))
    drains = [Drain(tuple(tuple(file) for file in files[i:j])) for i, j in pairwise(edges)]
    at = draw(st.integers(0, len(drains) - 1).map(lambda n: len(drains) - 1 - n))
    drains[at] = replace(
        drains[at], fault=draw(st.sampled_from([*STEPS, None])), replay=draw(st.booleans())
    )
    return Case(tuple(drains), draw(st.integers(1, 3)))


def _history(rng: Random, cell: int, keys: tuple[str, ...]) -> list[Line]:
    """Up to 40 lines about a few keys: changes, refused and blank ones, some of them more than
    once.
    """
    names = rng.sample(IDS, rng.randint(1, len(IDS)))
    found = [
        _any_line(rng, [f"{name}-{cell}" for name in names], keys)
        for _ in range(rng.randint(1, 24))
    ]
    found += rng.choices(found, k=rng.randint(0, 6))
    return found


def _any_line(rng: Random, names: list[str], keys: tuple[str, ...]) -> Line:
    kind = rng.random()
    if kind < 0.05:
        return Line(rng.choice([b"", b"  ", b"\t"]))
    if kind < 0.15:
        raw, reason = rng.choice([*BAD, _MORE_BAD] if "region" in keys else BAD)
        return Line(raw, reason=reason)
    known: dict[str, Any] = {"id": rng.choice(names)}
    if "region" in keys:
        known["region"] = rng.choice(["eu", "us"])
    key: tuple[Value, ...] = tuple(known[k] for k in keys)
    known["seq"] = rng.randint(1, 4)
    if kind < 0.35:
        more = rng.choice([{}, {"a": "no number"}, {"b": "gone", "part": f"p{key[0]}"}])
        return _line(known | {"op": "d"} | more, Change(key, known["seq"], delete=True))
    return _row(rng, known, key)


def _row(rng: Random, known: dict[str, Any], key: tuple[Value, ...]) -> Line:
    content: dict[str, Value] = {
        "op": rng.choice([None, "u"]),
        "a": rng.choice([None, 0, 1, 2]),
        "b": rng.choice([None, "", "x", "y", "ü\n", "\U0001f6eb"]),
        "part": rng.choice([None, "1", "2"]),
    }
    extra = rng.choice([None, "1"])
    rescued = json.dumps({"extra": extra}, separators=(",", ":")) if extra else None
    row = known | content | ({"extra": extra} if extra else {})
    return _line(row, Change(key, known["seq"], content=content | {"_rescued_data": rescued}))


def _line(row: dict[str, Any], change: Change) -> Line:
    return Line(json.dumps(row, ensure_ascii=False).encode(), change)
