"""A source that only tests know: lists of JSON texts, kept in a document beside the lake. A unit is
a range of a list.

Positions count from 0, as offsets of a log do, and one list is in many slices. Everything that
draindown needs of it is here: a model of its part of the pipeline file, a `Source`, a
`SliceReader`, and an entry in each registry.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pytest
from pydantic import Field
from pyspark.sql import SparkSession

from draindown.base.errors import TerminalError
from draindown.base.findings import Finding
from draindown.base.formatting import count
from draindown.config import sources
from draindown.config.landing import FlowSpec
from draindown.config.source import SourceSpec
from draindown.config.units import Size
from draindown.lake.documents import Document
from draindown.lake.home import FlowHome
from draindown.sources import intake, registry
from draindown.sources.batch_size import Bound
from draindown.sources.port import Forecast, Look, Progress, Taken
from draindown.sources.slices import Unit
from draindown.spark.frames import NUMBER, TEXT, relation
from draindown.spark.sources import registry as readers
from draindown.spark.sources.place import Block, Offset
from draindown.spark.sources.port import Read, SliceReader

_COLUMNS = pa.schema([("document", pa.string()), ("digest", pa.string())])


class NumbersSource(SourceSpec):
    """Lists in a JSON document: name to texts."""

    kind = "numbers"

    numbers: str
    format: str = "json"
    at_once: int = Field(default=2, ge=1)
    max_bytes_per_trigger: Size | None = None
    max_record_bytes: Size = 8 * 1024**2
    delimiter: str = ","
    timezone: str = "UTC"


class OwnNumbersSource(NumbersSource):
    """The same, with an intake per generation."""

    kind = "own_numbers"
    own_intakes = True

    numbers: str = ""
    own_numbers: str


class Numbers:
    """The `Source` of lists."""

    unit = "list"
    perishable = None
    following = None
    bringing_back: Sequence[str] = ("put them back, then try again",)

    def __init__(self, source: NumbersSource, layout: FlowHome, root: Path, run_id: str) -> None:
        self.source, self.layout, self.run_id = source, layout, run_id
        self.document = str(root / source.place)
        self._seen: dict[str, list[str]] | None = None

    @property
    def named(self) -> Numbers:
        return self

    def seen(self) -> dict[str, list[str]]:
        """The lists as they were when someone first asked."""
        if self._seen is None:
            self._seen = lists(self.document)
        return self._seen

    def ends(self, state: FlowHome, generation: int) -> dict[str, int]:
        """How far each list is pinned."""
        found: dict[str, int] = {}
        for one in intake.slices(state, generation):
            found |= {unit.name: unit.until for unit in one.units}
        return found

    def new(self, state: FlowHome, generation: int) -> dict[str, tuple[int, int]]:
        """The range of each list that is in no slice."""
        ends = self.ends(state, generation)
        found = {name: (ends.get(name, 0), len(texts)) for name, texts in self.seen().items()}
        return {name: (start, end) for name, (start, end) in found.items() if start < end}

    def out_of_reach(self) -> tuple[str, str] | None:
        return None

    def look(self, state: FlowHome, generation: int, first: int, now: datetime) -> Look:
        waiting, new = intake.waiting(state, generation, first), self.new(state, generation)
        texts = self.seen()
        new_bytes = sum(
            len(text) for name, (start, end) in new.items() for text in texts[name][start:end]
        )
        reasons = [f"{count(len(new), 'list')} with new records"] if new else []
        reasons += [f"{count(waiting.slices, 'slice')} yet to be read"] if waiting.slices else []
        return Look(
            unit=self.unit,
            units=len(new) + waiting.units,
            bytes=new_bytes + waiting.bytes,
            oldest=now.timestamp() if new else waiting.oldest,
            pinned=Forecast(waiting.slices, waiting.unpacked),
            reasons=reasons,
            forecast=lambda _: Forecast(self.portions(new), new_bytes),
        )

    def portions(self, new: Mapping[str, tuple[int, int]]) -> int:
        """The slices that ranges make."""
        return max(
            (-(-(end - start) // self.source.at_once) for start, end in new.values()), default=0
        )

    def pin(
        self, generation: int, now: datetime, progress: Progress | None = None
    ) -> NumbersPinning:
        intake.create(self.layout, generation, _COLUMNS)
        return NumbersPinning(self, generation, now, progress)

    def refuse_lost(self, state: FlowHome, generation: int, first: int) -> None:
        for name, end in self.ends(state, generation).items():
            if len(self.seen().get(name, ())) < end:
                raise TerminalError(
                    "lists-lost",
                    tried="read the lists",
                    found=f"{name} ends before {end}",
                    next="stop",
                )

    def missing(self, units: Iterable[Unit]) -> dict[str, Finding]:
        found = {}
        for unit in units:
            texts = lists(unit.row["document"]).get(unit.name, [])[unit.start : unit.until]
            if len(texts) < unit.until - unit.start:
                found[unit.range] = Finding(
                    kind="vanished", subject=unit.range, detail="is gone", next="put it back"
                )
            elif digest(texts) != unit.row["digest"]:
                found[unit.range] = Finding(
                    kind="changed", subject=unit.range, detail="changed", next="put it back"
                )
        return found

    def open_findings(self, state: FlowHome) -> list[Finding]:
        return []

    def refuse_changed(self, units: Sequence[Unit]) -> None:
        if found := self.missing(units):
            raise TerminalError(
                "input-changed", tried="read lists", found=", ".join(found), next="put them back"
            )

    def refuse_miscounted(
        self, number: int, units: Sequence[Unit], read: Mapping[str, int]
    ) -> None:
        sizes: Counter[str] = Counter()
        for unit in units:
            sizes[unit.name] += unit.until - unit.start
        if wrong := [name for name, size in sizes.items() if read.get(name, 0) != size]:
            raise TerminalError(
                "lines-differ", tried=f"read slice {number}", found=", ".join(wrong), next="stop"
            )

    def refuse_findings(self, findings: Sequence[Finding]) -> None:
        pass

    def samples(self, most: int) -> list[str]:
        return []

    def asked_again(self, asked: Collection[str], generation: int, first: int) -> list[str]:
        return list(asked)

    def give_up(
        self, units: Sequence[str], unread: Collection[str], *, by: str, note: str, at: datetime
    ) -> None:
        if unknown := set(units) - set(unread):
            raise TerminalError(
                "not-parked", tried="give lists up", found=", ".join(unknown), next="stop"
            )
        Document(self._given_up).write({"ranges": sorted({*self.given_up(), *units})})

    def given_up(self) -> frozenset[str]:
        return frozenset((Document(self._given_up).read() or {}).get("ranges", ()))

    @property
    def _given_up(self) -> str:
        return f"{self.layout.home}/given-up.json"

    def place(self, unit: str) -> str:
        return unit

    def moved(self, state: FlowHome, now: datetime) -> None:
        pass

    def headers(self, units: Collection[str]) -> Mapping[str, str]:
        return {}

    def leaving_out(self, units: Iterable[str]) -> str:
        return f"leave out {', '.join(units)}"


class NumbersPinning:
    """The `Pinning` of lists: of each list the next few records make a slice."""

    def __init__(
        self, source: Numbers, generation: int, now: datetime, progress: Progress | None
    ) -> None:
        self._source, self._generation, self._now, self._progress = (
            source,
            generation,
            now,
            progress,
        )
        self._left = source.new(source.layout, generation)
        self._next = intake.newest(source.layout, generation) + 1
        self._slices = self._units = 0

    def forecast(self, bound: Bound) -> Forecast:
        return Forecast(self._source.portions(self._left), 0)

    def take(self, bound: Bound, most: int | None = None) -> bool:
        taken = 0
        while self._left and (most is None or taken < most):
            self._write()
            taken += 1
        return bool(self._left)

    def _write(self) -> None:
        texts, rows = self._source.seen(), []
        for name, (start, end) in list(self._left.items()):
            until = min(start + self._source.source.at_once, end)
            some = texts[name][start:until]
            size = sum(map(len, some))
            own = {"document": self._source.document, "digest": digest(some)}
            shared = {
                "input": name,
                "start": start,
                "until": until,
                "bytes": size,
                "unpacked": size,
            }
            rows.append(own | shared | {"records": until - start, "arrived_at": self._now})
            self._left.pop(name)
            if until < end:
                self._left[name] = (until, end)
        intake.append(self._source.layout, self._generation, _COLUMNS, rows, self._now, self._next)
        self._next, self._slices, self._units = (
            self._next + 1,
            self._slices + 1,
            self._units + len(rows),
        )
        if self._progress:
            self._progress(self._units, self._units + len(self._left))

    @property
    def taken(self) -> Taken:
        return Taken(self._slices, self._units)

    def close(self) -> None:
        pass


class NumbersReader:
    """The `SliceReader` of lists. An id is a position."""

    settings: Mapping[str, str] = MappingProxyType({})

    def read(
        self, spark: SparkSession, flow: FlowSpec, units: Sequence[Unit], spool: str
    ) -> list[Read]:
        rows = [
            (text, unit.name, unit.start, unit.start + at)
            for unit in units
            for at, text in enumerate(
                lists(unit.row["document"])[unit.name][unit.start : unit.until]
            )
        ]
        return [
            Read(
                relation(
                    spark, {"value": TEXT, "_unit": TEXT, "_block": NUMBER, "_id": NUMBER}, rows
                )
            )
        ]

    def name(self, unit: str) -> str:
        return unit

    def offsets(self, blocks: Sequence[Block]) -> list[Offset]:
        return [(unit, block, 0) for unit, block, _, _ in blocks]

    def failure(self, error: BaseException) -> None:
        return None


def lists(document: str) -> dict[str, list[str]]:
    """The lists of a document."""
    path = Path(document)
    found: dict[str, list[str]] = json.loads(path.read_text()) if path.exists() else {}
    return found


def digest(texts: Iterable[str]) -> str:
    """What tells texts from others."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def register(patch: pytest.MonkeyPatch) -> None:
    """Enter the source in every registry."""
    make: registry.Make = Numbers  # `make check` compares it with the port
    reader: SliceReader = NumbersReader()
    for model in (NumbersSource, OwnNumbersSource):
        patch.setitem(sources.SOURCES, model.kind, model)
        patch.setitem(registry.MAKERS, model.kind, make)
        patch.setitem(readers.READERS, model.kind, reader)


def flow(kind: str, **more: Any) -> dict[str, Any]:
    """A flow that reads the lists in `lists.json`."""
    columns = {"id": "string not null", "n": "int not null"}
    target = {"keys": ["id"], "sequence_by": ["n"]}
    return {"source": {kind: "lists.json"}, "columns": columns, "target": target} | more
