"""What a rebuild undoes of commits of others: rows that no input explains, and rows that these
deleted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from draindown.base.errors import TerminalError, first_line
from draindown.base.formatting import count, shortened
from draindown.config.derived import DerivedFlow
from draindown.config.landing import FlowSpec
from draindown.flow import foreign, foreign_rows
from draindown.gate import acceptance
from draindown.gate.acceptance import ROWS
from draindown.lake.home import FlowHome
from draindown.lake.table import UNREADABLE, Table, identifier, stream
from draindown.ledger.foreign import ForeignCommits

if TYPE_CHECKING:
    import duckdb


@dataclass(frozen=True)
class Undone:
    """What a rebuild undoes of commits of others.

    `foreign`: in words; empty if nothing. `foreign_rows`: rows of the live table that no batch
    wrote as they are, which are dropped, or as the input has them. `foreign_deleted`: rows that
    others deleted, which come back where the input has them. None: a version that tells is gone.
    """

    foreign: tuple[str, ...] = ()
    foreign_rows: int | None = 0
    foreign_deleted: int | None = 0


def undone(layout: FlowHome, flow: FlowSpec | DerivedFlow) -> Undone:
    """Return what a rebuild undoes of commits of others, accepted ones included. Nothing of a
    derived flow: its rows follow from its sources.
    """
    has = foreign.in_table(layout)
    if not has.commits or isinstance(flow, DerivedFlow):
        return Undone()
    commits = tuple(str(one) for one in has.commits)
    import duckdb  # takes a tenth of a second, which a plan does not need

    try:
        written, deleted = _counted(layout, flow, _images(layout, flow, has))
    except (
        *UNREADABLE,
        duckdb.Error,
    ) as error:  # a version or file is gone, or a key has another type than before
        found = error.found if isinstance(error, TerminalError) else shortened(first_line(error))
        return Undone(
            (*commits, f"the number of these rows cannot be determined: {found}"), None, None
        )
    if not written and not deleted:
        return Undone()
    what = [
        f"{count(written, 'row')} that no batch wrote as they are: dropped, or as the input has them"
    ] * (written > 0)
    what += [f"{count(deleted, 'row')} that others deleted: back, where the input has them"] * (
        deleted > 0
    )
    return Undone((*what, *commits), written, deleted)


def refuse_undone(layout: FlowHome, found: tuple[str, ...]) -> None:
    """Raise TerminalError `rebuild-drops-rows` if a rebuild undoes something, in the words of
    `Undone.foreign`.
    """
    if not found:
        return
    of = f"{layout.pipeline}/{layout.flow}"
    raise TerminalError(
        "rebuild-drops-rows",
        tried=f"read all input of flow {layout.flow} into a fresh table",
        found="; ".join(found),
        changed="nothing",
        next=[
            f"draindown gate show {of}   # names the commits",
            f"draindown rebuild {of} --drop-foreign --yes   # if the input has all that is to stay",
        ],
    )


def _images(layout: FlowHome, flow: FlowSpec, has: ForeignCommits) -> list[pa.Table]:
    """Return the images of the rows that each commit changed, oldest first."""
    accepted = {one.commit.version: one for one in acceptance.standing(layout, has)}
    found = []
    for commit in has.commits:
        own = accepted.get(commit.version)
        found.append(
            acceptance.images(layout, own)
            if own
            else foreign_rows.changed_by(layout, flow, commit).images
        )
    return found


def _counted(layout: FlowHome, flow: FlowSpec, images: list[pa.Table]) -> tuple[int, int]:
    """Return how many rows are as one of the images, and how many keys of the images are not in the
    table any more.
    """
    from draindown.base.duck import connected  # a plan, which needs no DuckDB, imports this module

    keys, beside = foreign_rows.identity(flow)
    table = layout.tables.target
    known = [name for name in (*keys, *beside) if name in table.column_types]
    with connected() as db:
        _load(db, table, known, images)
        same = " and ".join(
            f"t.{identifier(name)} is not distinct from i.{identifier(name)}" for name in known
        )
        ((written,),) = db.execute(
            f"select count(*) from held t where exists (select 1 from images i where i.{ROWS} > 0 and {same})"
        ).fetchall()
        by = [name for name in keys if name in known]
        own = " and ".join(
            f"t.{identifier(name)} is not distinct from i.{identifier(name)}" for name in by
        )
        chosen = ", ".join(map(identifier, by))
        ((deleted,),) = db.execute(
            f"""select count(*) from (select distinct {chosen} from images where {ROWS} < 0) i
            where not exists (select 1 from held t where {own})"""
        ).fetchall()
    return int(written), int(deleted)


def _load(
    db: duckdb.DuckDBPyConnection, table: Table, known: list[str], images: list[pa.Table]
) -> None:
    chosen = ", ".join(map(identifier, known))
    db.register("rows", stream(table.table, f"select {chosen} from t"))
    db.execute("create temp table held as select * from rows")
    db.execute(f"create temp table images as select *, 0::bigint as {ROWS} from held limit 0")
    for nth, some in enumerate(images):
        db.register(
            f"some{nth}",
            some.select([name for name in some.column_names if name in (*known, ROWS)]),
        )
        db.execute(f"insert into images by name select * from some{nth}")
