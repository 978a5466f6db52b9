"""Records of a log that the lake keeps (`raw`), for sources that may not have them any more."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from draindown.audit.envelope import Fields, fields_of
from draindown.config.landing import FlowSpec
from draindown.lake.home import FlowHome
from draindown.lake.table import literal
from draindown.provenance.records import UNREADABLE, Names, Record, Typed, Values, holds
from draindown.sources import raw
from draindown.sources.raw import Kept
from draindown.sources.slices import Unit


class KeptRecords:
    """Reads raw records in the lake. What it does not have is asked of nobody: brokers are not
    looked at.
    """

    of_waiting = "what waits at the brokers was not looked at"

    def __init__(self, flow: FlowSpec, layout: FlowHome) -> None:
        self._flow, self._layout = flow, layout
        self._known: dict[Names, tuple[Fields, Typed]] = {}

    def gone(self, unit: Unit) -> str:
        """Return which offsets the lake does not keep, and since when."""
        asked = Kept(unit.name, unit.log, unit.start, unit.until)
        kept = raw.kept_of(self._layout, [asked])
        if sum(one.until - one.start for one in kept) == unit.until - unit.start:
            return ""
        return f"offsets {unit.range} are not in the lake: {self._since()}"

    def _since(self) -> str:
        log = self._layout.tables.raw
        if not log.exists:
            return "the flow keeps no raw records (`kafka.keep_raw` of its source)"
        dropped = next((one for one in log.commits() if one.operation == "DELETE"), None)
        if dropped is None:
            return "they were read before the flow kept raw records, or the records were put aside"
        at = datetime.fromtimestamp(dropped.timestamp / 1000, UTC)
        return f"days that are older than `kafka.keep_raw` were last dropped at {at:%Y-%m-%d %H:%M} UTC"

    def records(self, unit: Unit, needles: Collection[bytes] = ()) -> Iterator[Record]:
        """Yield the records of a range of offsets that the lake has."""
        where = (
            f"part = {literal(raw.RECORDS)} and input = {literal(unit.name)} and log = {literal(unit.log)} "
            f"and position >= {unit.start} and position < {unit.until}"
        )
        for row in self._layout.tables.raw.rows(f"select * from t where {where} order by position"):
            text = row["value"] if row["value"] is not None else b""
            beside = [header["value"] or b"" for header in row["headers"] or ()]
            if holds(b"".join([text, row["key"] or b"", *beside]), needles):
                yield Record(row["position"], text, partial(self._values, row))

    def waiting(self, root: Path) -> Iterator[Unit]:  # noqa: ARG002
        """Yield nothing: what is at the brokers only is not looked at."""
        yield from ()

    def _values(self, row: Mapping[str, Any], names: Names) -> Values | None:
        if names not in self._known:
            self._known[names] = fields_of(self._flow, names), Typed(self._flow, names)
        fields, typed = self._known[names]
        try:
            return typed(fields(row))
        except UNREADABLE:
            return None
