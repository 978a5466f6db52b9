"""Acceptances: a person's decision that what a foreign commit did to rows of the target is right.

foreign/NNNNNNNNNN.json          the acceptances, as revisions
foreign/<table>-<version>-<ms>.parquet   the rows that the commit changed, as they were and as they are
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from draindown.base.clock import now
from draindown.base.errors import TerminalError
from draindown.base.models import Frozen
from draindown.lake.home import FlowHome
from draindown.lake.revisions import Revisions
from draindown.lake.stores import store_of
from draindown.ledger.foreign import ForeignCommit, ForeignCommits

ROWS = "_rows"
"""Column with how many rows the later version has more (positive) or fewer (negative) of an
image.
"""


@dataclass(frozen=True)
class Difference:
    """How a version of a table differs from an earlier one.

    `images`: the identifying columns of rows as they were and as they are, with their number as
    ROWS. Rows of one key that are in both versions count as updated.
    """

    images: pa.Table
    inserted: int = 0
    updated: int = 0
    deleted: int = 0


class Acceptance(Frozen):
    """A decision about one foreign commit of the table with an id. The counts are rows, found by
    comparing versions.
    """

    table: str
    commit: ForeignCommit
    by: str
    reason: str
    at: datetime
    inserted: int
    updated: int
    deleted: int

    @property
    def net(self) -> int:
        """Rows that the table has more by the commit."""
        return self.inserted - self.deleted

    @property
    def rows(self) -> str:
        """What the commit did to rows, in words."""
        found = {"inserted": self.inserted, "updated": self.updated, "deleted": self.deleted}
        return (
            self.commit.model_copy(update=found).rows if any(found.values()) else "no row changed"
        )

    def is_of(self, table: str, commit: ForeignCommit) -> bool:
        """Return whether it is about a commit of a table."""
        return (self.table, self.commit.mark) == (table, commit.mark)

    def __str__(self) -> str:
        what = f"{self.commit.name} ({self.commit.writer}): {self.rows}"
        return f"{what}; accepted by {self.by} at {self.at:%Y-%m-%d %H:%M} UTC: {self.reason}"


def acceptances(layout: FlowHome) -> list[Acceptance]:
    """Return all acceptances, oldest first, also those of earlier tables. Raises TerminalError
    `state-damaged`.
    """
    return _documents(layout).newest()[1] or []


def standing(layout: FlowHome, foreign: ForeignCommits) -> list[Acceptance]:
    """Return the acceptances of commits whose change the target has."""
    accepted = acceptances(layout) if foreign.commits else []
    table = layout.tables.target.id if accepted else ""
    marks = {(table, commit.mark) for commit in foreign.commits}
    return [one for one in accepted if (one.table, one.commit.mark) in marks]


def images(layout: FlowHome, of: Acceptance) -> pa.Table:
    """Return the images of the rows that an accepted commit changed. Raises TerminalError
    `state-damaged`.
    """
    import pyarrow.parquet as pq  # takes a tenth of a second, which a plan does not need

    path = _rows_path(layout, of.table, of.commit)
    found = store_of(path).read(path)
    try:
        if found is None:
            raise ValueError("it is gone")
        return pq.read_table(io.BytesIO(found[0]))
    except (ValueError, pa.ArrowException, OSError) as error:
        raise TerminalError(
            "state-damaged",
            tried=f"read the rows of accepted {of.commit.name} of {layout.tables.target.path}",
            found=f"{path}: {str(error).partition(chr(10))[0]}",
            next=f"restore {path} from a copy",
        ) from None


def accept(
    layout: FlowHome, commit: ForeignCommit, found: Difference, *, by: str, reason: str
) -> Acceptance:
    """Record that a commit is right, with the rows that it changed. Idempotent; a later reason
    replaces an earlier.
    """
    import pyarrow.parquet as pq

    table = layout.tables.target.id
    counts = {"inserted": found.inserted, "updated": found.updated, "deleted": found.deleted}
    new = Acceptance(table=table, commit=commit, by=by, reason=reason.strip(), at=now(), **counts)
    layout.make()
    path, rows = _rows_path(layout, table, commit), io.BytesIO()
    pq.write_table(found.images, rows)
    store_of(path).put(path, rows.getvalue())  # first: no acceptance is without its rows
    documents = _documents(layout)
    while True:
        number, current = documents.newest()
        others = [one for one in current or [] if not one.is_of(table, commit)]
        if documents.put(
            number, {"accepted": [one.model_dump(mode="json") for one in [*others, new]]}
        ):
            return new


def _rows_path(layout: FlowHome, table: str, commit: ForeignCommit) -> str:
    return f"{layout.foreign}/{table}-{commit.version}-{commit.committed_ms}.parquet"


def _documents(layout: FlowHome) -> Revisions[list[Acceptance]]:
    lost = "the acceptances before it count: one may be missing; accept it again"
    return Revisions(layout.foreign, _parsed, lost)


def _parsed(content: Mapping[str, Any]) -> list[Acceptance]:
    return [Acceptance.model_validate(one) for one in content["accepted"]]
