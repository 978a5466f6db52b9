"""The rows of a source table that rows of a derived table follow from: what each kind of derivation says of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class SourceRows:
    """The rows of one source table behind rows of the result, in DuckDB's SQL: `r` is a result's row, `s` a source's.

    Attributes:
        equal: columns of the source by the column of the result that has the same value.
        null_is_value: whether NULL equals NULL in `equal`.
        span: the source's time, and the result's columns between which it lies, both ends in; None without. They only
            bound it: `condition` decides.
        condition: what else is true of a source row behind a result's row.
        counts: true for those of these rows from which the result's row is computed. `nth` is the row's position in
            `order`, from 1, among those behind the same row.
        order: the order that `counts` refers to; empty without.
        otherwise: why the other rows don't count, in words.
    """

    equal: Mapping[str, str]
    null_is_value: bool = True
    span: tuple[str, str, str] | None = None
    condition: str = "true"
    counts: str = "true"
    order: str = ""
    otherwise: str = ""
