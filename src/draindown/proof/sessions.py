"""The query of a `session` in DuckDB's SQL, with those measures whose meaning is certain to be
Spark's.
"""

from __future__ import annotations

from collections.abc import Mapping

from draindown.config.session import Session
from draindown.lake.table import identifier
from draindown.proof.source_rows import SourceRows
from draindown.proof.windows import measure, scales


def query(session: Session, types: Mapping[str, str]) -> str | None:
    """Return the whole query over the table `source`; None if a measure has no form of certain
    meaning.

    `types`: Delta's types by column of the source. Starts and ends of sessions are microseconds
    since 1970. The columns of `windows.scales` are in it too.
    """
    measures = {name: measure(text, types) for name, text in session.measures.items()}
    if None in measures.values():
        return None
    by, gap = ", ".join(map(identifier, session.group_by)), session.gap * 1_000_000
    within = f"over (partition by {by} order by _us"
    named = [
        f"{text} as {identifier(name)}"
        for name, text in (measures | scales(session.measures, types)).items()
    ]
    columns = [
        *map(identifier, session.group_by),
        f"min(_us) as {session.START}",
        f"max(_us) + {gap} as {session.END}",
        f"cast(cast(max(_us) - min(_us) as decimal(18, 0)) * 0.000001 as decimal(18, 6)) as {session.SECONDS}",
        *named,
    ]
    time = identifier(session.time)
    timed = f"select *, epoch_us({time}) as _us from source where {time} is not null"
    first = f"select *, case when _us - lag(_us) {within}) <= {gap} then 0 else 1 end as _first from ({timed})"
    # by range: rows of one instant are of one session, in whichever order both windows have them
    numbered = (
        f"select *, sum(_first) {within} range unbounded preceding) as _session from ({first})"
    )
    return f"select {', '.join(columns)} from ({numbered}) group by {by}, _session"


def behind(session: Session) -> SourceRows:
    """Return the rows of a session: from its start to a gap before its end, or those at its start
    if it has no end.
    """
    time, gap = f"epoch_us(_s.{identifier(session.time)})", session.gap * 1_000_000
    start = f"epoch_us(_r.{session.START})"
    within = f"{time} between {start} and coalesce(epoch_us(_r.{session.END}) - {gap}, {start})"
    span = (session.time, session.START, session.END)
    return SourceRows({name: name for name in session.group_by}, span=span, condition=within)
