"""The newest proof of a derived table, kept in the flow's home for reports, the page and doctor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from draindown.base.formatting import count
from draindown.lake.home import FlowHome
from draindown.lake.table import Table


@dataclass(frozen=True)
class Proven:
    """What a proof found. Versions are those that were compared, `share` that of the keys, `at` in
    ISO 8601, UTC.
    """

    holds: bool
    table_id: str
    table_version: int
    source_versions: Sequence[int]
    share: float
    differing: int
    rows: int
    digest: str
    engine: str
    at: str

    @property
    def differs(self) -> str:
        """How many keys differ, in words."""
        return keys_differ(self.differing)

    def covers(self, table: Table, version: int) -> bool:
        """Return whether the whole table was found right at `version` or later."""
        return (
            self.holds
            and self.share == 1
            and self.table_id == table.id
            and self.table_version >= version
        )

    def is_of(self, table: Table) -> bool:
        """Return whether it is about the table as it is now."""
        return (self.table_id, self.table_version) == (table.id, table.version)

    def __str__(self) -> str:
        verdict = "holds" if self.holds else f"DOES NOT HOLD, {self.differs},"
        versions = " and ".join(str(one) for one in self.source_versions)
        of = (
            f"version {versions} of the source"
            if len(self.source_versions) == 1
            else f"versions {versions} of the sources"
        )
        part = "" if self.share == 1 else f" of {self.share:.2%} of the keys"
        return (
            f"{verdict} for version {self.table_version}, of {of}: "
            f"{count(self.rows, 'row')}{part}, digest {self.digest}, by {self.engine}, {self.at[:16].replace('T', ' ')}"
        )


def keys_differ(number: int) -> str:
    """Return how many keys differ, in words."""
    return f"{count(number, 'key')} {'differs' if number == 1 else 'differ'}"


def keep(layout: FlowHome, certificate: Mapping[str, Any]) -> None:
    """Keep a certificate in place of the one before it. `certificate`: as `Certificate.as_dict`
    returns it.

    A sample that holds says nothing of keys that it left out, so one that found falsehoods in the
    same version stays.
    """
    found = Proven(
        holds=certificate["holds"],
        table_id=certificate["table"]["id"],
        table_version=certificate["table"]["version"],
        source_versions=[one["version"] for one in certificate["sources"]],
        share=certificate["share"],
        differing=certificate["differing"],
        rows=certificate["found"],
        digest=certificate["digest"],
        engine=certificate["engine"],
        at=certificate["at"],
    )
    before = newest(layout) if found.holds and found.share < 1 else None
    same = before and (before.table_id, before.table_version) == (
        found.table_id,
        found.table_version,
    )
    if before is None or before.holds or not same:
        layout.proven.write(asdict(found))


def newest(layout: FlowHome) -> Proven | None:
    """Return what the newest proof found, or None where there was none. Raises TerminalError
    `state-damaged`.
    """
    return layout.proven.parsed(
        lambda content: Proven(**content), without="an audit of the flow writes it again"
    )
