"""Commits of others in an audit: undecided ones are residues, the rows of accepted ones are none,
and are listed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import pyarrow as pa

from draindown.audit.context import AuditContext
from draindown.flow import foreign, foreign_rows
from draindown.gate.acceptance import ROWS

Origin = tuple[str | None, int | None]


def foreign_commits(context: AuditContext) -> None:
    """Add a residue for each foreign commit that the table has and nobody has decided about.

    Put the accepted commits, with their rows, into `context.accepted`.
    """
    commits = foreign.in_table(context.layout)
    context.accepted = foreign_rows.accepted(context.layout, commits)
    for commit in foreign.undecided(context.layout, context.flow):
        context.expect(
            "foreign-commit", commit.name, "a batch of this flow", commit.operation, str(commit)
        )


def rows_accepted(context: AuditContext) -> int:
    """Return how many rows more the table has by accepted commits; negative if fewer."""
    return sum(acceptance.net for acceptance, _ in context.accepted)


def images_with(context: AuditContext, names: list[str]) -> Iterator[pa.Table]:
    """Yield the images of each accepted commit that have all of these columns, oldest first."""
    return (images for _, images in context.accepted if {*names} <= {*images.column_names})


def rows_by_origin(context: AuditContext) -> Mapping[Origin, int]:
    """Return how many rows of each origin accepted commits added; negative if they removed some."""
    found = defaultdict[Origin, int](int)
    for images in images_with(context, [foreign_rows.ORIGIN]):
        for origin, number in zip(
            images[foreign_rows.ORIGIN].to_pylist(), images[ROWS].to_pylist(), strict=True
        ):
            known = origin or {}
            found[known.get("input"), known.get("position")] += number
    return {origin: number for origin, number in found.items() if number}
