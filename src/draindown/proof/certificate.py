"""What a proof found, and what it is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

from draindown.base.formatting import count, printable
from draindown.config.derived import TOLERANCE
from draindown.flow.proven import keys_differ
from draindown.lake.table import Table

SHOWN = 20
"""Most falsehoods that a certificate lists."""
What = Literal["missing", "unexpected", "wrong", "doubled"]


@dataclass(frozen=True)
class Falsehood:
    """A key for which table and query differ.

    `what`: the table lacks it; has it, and the query does not; has other values; or has it more
    than once. `columns`: for `wrong`, the columns that differ, with the value that is expected and
    the one that was found.
    """

    what: What
    key: Mapping[str, Any]
    columns: Mapping[str, tuple[Any, Any]]

    def __str__(self) -> str:
        key = ", ".join(f"{name} {printable(str(value), 60)}" for name, value in self.key.items())
        told = [
            f"{name} is {printable(str(found), 60)}, expected {printable(str(expected), 60)}"
            for name, (expected, found) in self.columns.items()
        ]
        return "; ".join([f"{self.what}: {key}", *told])


@dataclass(frozen=True)
class Snapshot:
    """A version of a table. `id`: Delta's id of the table."""

    path: str
    id: str
    version: int


def snapshot(log: Table) -> Snapshot:
    """Return the version at which a table was opened."""
    return Snapshot(log.path, log.id, log.version)


@dataclass(frozen=True)
class Certificate:
    """The result of a proof.

    Attributes:
        engine: name and version of what recomputed the query.
        sources, table: the versions that were compared.
        share: the share of the keys that was compared, 0 to 1.
        expected, found: rows of the query and of the table, within that share.
        digest: of all rows of the version of the table (`proof.digest`), whichever engine and
            share.
        differing: number of keys that differ.
        falsehoods: the first of them.
        at: when the proof ended.
    """

    pipeline: str
    flow: str
    kind: str
    engine: str
    sources: Sequence[Snapshot]
    table: Snapshot
    share: float
    expected: int
    found: int
    digest: str
    differing: int
    falsehoods: Sequence[Falsehood]
    at: datetime
    seconds: float
    tolerance: float = TOLERANCE

    @property
    def holds(self) -> bool:
        """Whether the table equals the query."""
        return self.differing == 0 and not self.falsehoods

    @property
    def over(self) -> str:
        """The sources, each with its version."""
        return " and ".join(f"{one.path} at version {one.version}" for one in self.sources)

    def __str__(self) -> str:
        verdict = "holds" if self.holds else f"does not hold: {keys_differ(self.differing)}"
        part = "" if self.share == 1 else f", {self.share:.2%} of the keys"
        lines = [
            f"{self.pipeline}/{self.flow}  {verdict}",
            f"  {self.kind} over {self.over}, by {self.engine}{part}",
            f"  {count(self.expected, 'row')} expected, {self.found:,} in version {self.table.version} of the table; "
            f"digest of that version {self.digest}",
            f"  doubles compared within {self.tolerance:g}, in {self.seconds:g} s",
        ]
        lines += [f"  {one}" for one in self.falsehoods]
        rest = self.differing - len(self.falsehoods)
        return "\n".join([*lines, *([f"  and {rest:,} more"] if rest > 0 else [])])

    def as_dict(self) -> dict[str, Any]:
        """Return the certificate as a JSON-ready dict."""
        flat = asdict(self) | {"holds": self.holds, "at": self.at.isoformat()}
        flat["falsehoods"] = [
            {
                "what": one.what,
                "key": {name: str(value) for name, value in one.key.items()},
                "columns": {
                    name: [str(value) for value in both] for name, both in one.columns.items()
                },
            }
            for one in self.falsehoods
        ]
        return flat
