"""What foreign commits did to rows of a target, by comparing its versions, and as accepted ones
kept it.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from draindown.base.errors import TerminalError
from draindown.base.formatting import shortened
from draindown.config.derived import DerivedFlow
from draindown.config.landing import FlowSpec
from draindown.gate import acceptance
from draindown.gate.acceptance import Acceptance, Difference
from draindown.lake.home import FlowHome
from draindown.lake.table import UNREADABLE, Table
from draindown.ledger.foreign import ForeignCommit, ForeignCommits

ORIGIN, CHANGED_AT = "_origin", "_changed_at"


def identity(flow: FlowSpec | DerivedFlow) -> tuple[list[str], list[str]]:
    """Return the columns that identify a row of the target, and those that tell two rows of one
    identity apart.
    """
    keys = list(flow.target.row_keys) or [ORIGIN]
    beside = [name for name in flow.target.essential if name not in keys]
    return keys, [*beside, CHANGED_AT]


def changed_by(
    layout: FlowHome, flow: FlowSpec | DerivedFlow, commit: ForeignCommit, where: str = "true"
) -> Difference:
    """Return what a foreign commit did to rows, of those that the SQL `where` selects.

    Raises TerminalError `foreign-unreadable`.
    """
    import duckdb  # takes a tenth of a second, which a plan does not need

    from draindown.gate.differences import difference

    path = layout.tables.target.path
    try:
        before = None if commit.first is not None else Table(path, commit.version - 1)
        return difference(Table(path, commit.version), before, *identity(flow), where)
    except (*UNREADABLE, duckdb.Error) as error:
        of = f"{layout.pipeline}/{layout.flow}"
        pair = (
            f"version {commit.version}"
            if commit.first is not None
            else f"versions {commit.version - 1} and {commit.version}"
        )
        raise TerminalError(
            "foreign-unreadable",
            tried=f"compare {path} before and after {commit.name}, which is no batch of this flow",
            found=f"{pair} can't be read any more: {shortened(str(error), 300)}",
            changed="nothing",
            next=[
                f"draindown audit {of}   # names the rows that differ from the input",
                f"draindown rebuild {of}   # reads all input into a fresh table",
            ],
        ) from error


def accepted(layout: FlowHome, foreign: ForeignCommits) -> Sequence[tuple[Acceptance, pa.Table]]:
    """Return the acceptances of commits whose change the target has, each with the images of its
    rows.
    """
    return [(one, acceptance.images(layout, one)) for one in acceptance.standing(layout, foreign)]
