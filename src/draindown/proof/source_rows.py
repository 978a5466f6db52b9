"""The rows of a source table that rows of a derived table follow from: what each kind of derivation
says of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from draindown.lake.table import identifier, literal


@dataclass(frozen=True)
class SourceRows:
    """The rows of one source table behind rows of the result, in DuckDB's SQL: `_r` is a result's
    row, `_s` a source's.

    Attributes:
        equal: columns of the source by the column of the result that has the same value.
        null_is_value: whether NULL equals NULL in `equal`.
        span: the source's time, and the result's columns between which it lies, both ends in; None
            without. They only bound it: `condition` decides.
        condition: what else is true of a source row behind a result's row.
        counts: true for those of these rows from which the result's row is computed. `nth` is the
            row's position in `order`, from 1, among those behind the same row.
        order: the order that `counts` refers to; empty without.
        otherwise: why the other rows don't count, in words.
        by_itself: whether `condition` looks at the row of the source alone, and at none beside it.
    """

    equal: Mapping[str, str]
    null_is_value: bool = True
    span: tuple[str, str, str] | None = None
    condition: str = "true"
    counts: str = "true"
    order: str = ""
    otherwise: str = ""
    by_itself: bool = True


def late_rows(table: str, time: str, accept: int, row: str = "") -> str:
    """Return the condition, in DuckDB's SQL, that a source row is late and nobody applied it.
    `row`: its alias.

    `allowed_lateness`: seconds after its `time` from which on a row that arrives is late. The table `applied`
    has source_table, unit, position and arrived_at of the late rows that count all the same.
    """
    late = f"epoch_us({row}{identifier(time)}) < epoch_us({row}_arrived_at) - {accept * 1_000_000}"
    came = f"coalesce({late}, false)"  # a row without a time is not late
    same = (
        f"a.source_table = {literal(table)} and a.input = {row}_origin.input and a.position = {row}_origin.position "
        f"and epoch_us(a.arrived_at) = epoch_us({row}_arrived_at)"
    )
    return f"{came} and not exists (select 1 from applied a where {same})"
