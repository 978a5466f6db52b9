"""Change events of a shop's orders, deterministic: gzipped JSON lines in order of arrival.

A *feed* builds a table from nothing, as W1 has it: 60 % updates, 5 % deletes, 2 % lines that come
twice, 3 % that come after a newer change of their order, 0.1 % that can't be read, the rest new
orders. A *batch* changes a table that was seeded with a known row for every id (`seed_columns`).
"""

from __future__ import annotations

import gzip
import os
from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache
from pathlib import Path
from random import Random

DAYS = 90
FIRST_DAY = date(2026, 1, 1)
STATUSES = ("open", "paid", "sent", "done")
RECENT_DAYS = 3

_KINDS = ("malformed", "again", "late", "delete", "update", "insert")
_BOUNDS = (0.001, 0.021, 0.051, 0.101, 0.701)  # of the kinds but the last, added up
_STEP = 10  # between two sequences, so that a late change fits in between
_LATE = 5
_CUSTOMERS = 50_000
_AMOUNTS = 100_000
_NEWEST = 0.9  # of the feed's updates go to the newest tenth of the orders
_DELETED = 0.05  # of a batch's rows
_INSERTED = 0.15  # up to here of a batch's rows are new orders
_BATCH_SEQUENCE = 1_000_000  # sequences of one batch


@dataclass(frozen=True)
class Seeded:
    """Orders that a table has before the first event: numbered from 0, as many on every day."""

    rows: int = 0
    """A multiple of `days`."""
    days: int = DAYS

    @property
    def daily(self) -> int:
        """Orders of one day."""
        return self.rows // self.days


NOTHING = Seeded()


class Feed:
    """What arrives, line after line. `day` of new orders moves on from outside."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._sequence = 0
        self._days = bytearray()  # by order
        self._newest: list[int] = []  # sequence of each order's newest change
        self._dead: list[int] = []
        self._gone: set[int] = set()
        self._last = ""
        self._broken = 0
        self.day = 0

    def lines(self, count: int) -> Iterator[str]:
        """The next `count` lines."""
        for _ in range(count):
            yield self._line(_KINDS[bisect(_BOUNDS, self._random.random())])

    def _line(self, kind: str) -> str:
        if kind == "malformed":
            return self._malformed()
        if kind == "again" and self._last:
            return self._last
        order = self._chosen() if kind != "insert" else None
        if order is None:
            self._last = self._insert()
        elif kind == "late":
            return self._late(order)
        else:
            self._last = self._change(order, "delete" if kind == "delete" else "upsert")
        return self._last

    def _chosen(self) -> int | None:
        """An order that lives, most often a new one."""
        known = len(self._newest)
        for _ in range(10 if known else 0):
            first = known - known // 10 - 1 if self._random.random() < _NEWEST else 0
            order = first + int(self._random.random() * (known - first))
            if order not in self._gone:
                return order
        return None

    def _insert(self) -> str:
        self._days.append(self.day)
        self._newest.append(0)
        return self._change(len(self._newest) - 1, "upsert")

    def _change(self, order: int, op: str) -> str:
        self._sequence += _STEP
        self._newest[order] = self._sequence
        if op == "delete":
            self._gone.add(order)
            self._dead.append(order)
        return event(self._random, order, self._days[order], op, self._sequence)

    def _late(self, order: int) -> str:
        """A change older than the newest of its order; of a deleted one, for every third."""
        if self._dead and self._random.random() < 1 / 3:
            order = self._dead[int(self._random.random() * len(self._dead))]
        return event(self._random, order, self._days[order], "upsert", self._newest[order] - _LATE)

    def _malformed(self) -> str:
        self._broken += 1
        line = event(self._random, 1_000_000_000, self.day, "upsert", self._sequence)
        return (
            line[: len(line) // 2],
            "no event at all",
            line.replace('"seq":', '"seq":"soon","was":'),
            line.replace('"order_id":', '"order":'),
        )[self._broken % 4]


@cache
def _date(day: int) -> str:
    return (FIRST_DAY + timedelta(days=day)).isoformat()


def event(
    random: Random, order: int, day: int, op: str, sequence: int, amount: int | None = None
) -> str:
    """One line. A delete has its key and sequence only."""
    head = f'{{"order_id":{order},"event_date":"{_date(day)}","op":"{op}","seq":{sequence}'
    if op == "delete":
        return head + "}"
    bits = random.getrandbits(64)
    amount = bits % _AMOUNTS if amount is None else amount
    at = f"{_date(day)}T{bits % 24:02}:{bits % 59:02}:{bits % 53:02}Z"
    return (
        f'{head},"status":"{STATUSES[bits % 4]}","customer":"c-{bits % _CUSTOMERS}","amount":{amount},'
        f'"updated_at":"{at}","note":"{bits:016x}"}}'
    )


def feed(landing: Path, sizes: Sequence[int], seed: int = 90) -> list[Path]:
    """Write one file of each size (lines) to `landing`, over 90 days of orders; the files in order
    of arrival.
    """
    source = Feed(seed)
    files = []
    for number, size in enumerate(sizes):
        source.day = number * DAYS // len(sizes)
        files.append(write(landing, number, source.lines(size)))
    return files


def batch(
    seeded: Seeded, rows: int, number: int, recent: float, *, new: int = 0, bad: int = 0
) -> Iterator[str]:
    """The lines of one batch of changes to a table that has the `seeded` orders.

    Args:
        seeded: what the table had before its first batch.
        rows: how many lines of the mixture: 5 % deletes, 10 % new orders, the rest updates.
        number: which batch of this table; later batches are newer.
        recent: share of the lines that concern the newest three days; the others concern any day.
        new: how many lines more are new orders, as the gate likes them.
        bad: how many lines more are new orders with an amount that the suite refuses.
    """
    random = Random(number * 1_000_003 + seeded.rows)
    newest = seeded.rows - seeded.daily * RECENT_DAYS
    for at in range(rows + new + bad):
        sequence = number * _BATCH_SEQUENCE + at
        near, what = random.random() < recent, random.random()
        if at >= rows or _DELETED <= what < _INSERTED:
            day = random.randrange(seeded.days - RECENT_DAYS if near else 0, seeded.days)
            amount = -1 if at >= rows + new else None
            yield event(random, seeded.rows + sequence, day, "upsert", sequence, amount)
        else:
            order = random.randrange(newest if near else 0, seeded.rows)
            yield event(
                random,
                order,
                order // seeded.daily,
                "delete" if what < _DELETED else "upsert",
                sequence,
            )


def write(landing: Path, number: int, lines: Iterator[str]) -> Path:
    """One file of events; its time of change is its number, so that order of arrival is the same
    everywhere.
    """
    landing.mkdir(parents=True, exist_ok=True)
    path = landing / f"events-{number:05}.json.gz"
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode(), 6, mtime=0))
    os.utime(path, (number + 1, number + 1))
    return path


def seed_columns(seeded: Seeded, divide: str) -> str:
    """The row of every `id` below `seeded.rows` as a select list; `divide`: how the engine writes
    integer division.
    """
    statuses = " ".join(f"when {at} then '{status}'" for at, status in enumerate(STATUSES))
    return (
        f"id as order_id, date '{FIRST_DAY}' + cast(id {divide} {max(1, seeded.daily)} as int) as event_date, "
        "'upsert' as op, cast(0 as bigint) as seq, "
        f"case id % {len(STATUSES)} {statuses} end as status, concat('c-', id % {_CUSTOMERS}) as customer, "
        f"cast(id % {_AMOUNTS} as int) as amount, timestamp '{FIRST_DAY} 00:00:00' as updated_at, "
        "md5(cast(id as varchar(20))) as note"
    )
