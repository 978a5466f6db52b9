"""The query of a `history` in DuckDB's SQL, where order and equality of its values are certain to
be Spark's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from draindown.config.certain import condition
from draindown.config.history import History
from draindown.config.names import is_own
from draindown.config.ranking import total_order
from draindown.lake.table import identifier
from draindown.proof.ranking import is_certain, listed
from draindown.proof.source_rows import SourceRows


def query(part: History, types: Mapping[str, str]) -> str | None:
    """Return the whole query over the table `source`; None if a column or the condition is not
    certain to be Spark's.

    `types`: Delta's types by column of the source.
    """
    columns = [name for name in types if not is_own(name)]
    deletes = "false" if part.apply_as_deletes is None else condition(part.apply_as_deletes, types)
    if deletes is None or not all(is_certain(str(types[name])) for name in columns):
        return None
    by, sequence = listed(part.scope_keys), listed(part.sequence_by)
    others = [name for name in columns if name not in part.scope_keys]
    content = [
        one.column for one in total_order(part, columns) if one.column not in part.sequence_by
    ]
    newest = ", ".join(f"{identifier(name)} desc nulls last" for name in content)
    in_turn = f"over (partition by {by} order by {sequence})"
    known = " and ".join(f"{identifier(name)} is not null" for name in part.sequence_by)
    same = [
        f"{identifier(n)} is not distinct from lag({identifier(n)}) {in_turn}"
        for n in part.tracked(columns)
    ]
    events = (
        f"select *, {_at(part.sequence_by)} as _at, coalesce({deletes}, false) as _gone from source where {known} "
        f"qualify row_number() over (partition by {by}, {sequence} order by _gone desc{newest and ', ' + newest}) = 1"
    )
    goes_on = " and ".join([f"not coalesce(lag(_gone) {in_turn}, true)", *same])
    begun = f"select *, not _gone and not ({goes_on}) as _begins from ({events})"
    numbered = (
        f"select *, sum(cast(_begins or _gone as int)) over (partition by {by} order by {sequence} "
        f"rows unbounded preceding) as _run from ({begun})"
    )
    runs = (
        f"select {by}, _run, min(_at) as {identifier(part.START)}, bool_or(_gone) as _gone, "
        f"{''.join(f'arg_max_null({identifier(name)}, _at) as {identifier(name)}, ' for name in others)} "
        f"from ({numbered}) group by {by}, _run"
    )
    ended = (
        f"select *, lead({identifier(part.START)}) over (partition by {by} order by _run) as {identifier(part.END)} "
        f"from ({runs})"
    )
    return (
        f"select {listed([*part.scope_keys, *part.made, *others])} from ({ended}) where not _gone"
    )


def behind(part: History) -> SourceRows:
    """Return the events of a row: from its start on, before its end."""
    at, start, end = (
        _at(part.sequence_by, "_s."),
        f"_r.{identifier(part.START)}",
        f"_r.{identifier(part.END)}",
    )
    within = f"{at} >= {start} and ({end} is null or {at} < {end})"
    span = (part.sequence_by[0], part.START, part.END) if len(part.sequence_by) == 1 else None
    return SourceRows({name: name for name in part.scope_keys}, span=span, condition=within)


def _at(names: Sequence[str], row: str = "") -> str:
    """Return the sequence as one value: that of the column, or of several a struct of them. `row`:
    its alias.
    """
    if len(names) == 1:
        return f"{row}{identifier(names[0])}"
    return f"struct_pack({', '.join(f'{identifier(name)} := {row}{identifier(name)}' for name in names)})"
