"""Foreign commits of a flow's target that nobody has decided about, and how a person may decide.

A decision is an acceptance, a RESTORE to a version before them, or a rebuild. Of a derived flow it
is a reset, a rebuild or a whole proof that holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from draindown.base.findings import Finding
from draindown.base.formatting import count
from draindown.config.derived import DerivedFlow
from draindown.config.landing import FlowSpec
from draindown.flow import proven
from draindown.gate import acceptance, published
from draindown.gate.published import Unpublished
from draindown.lake.home import FlowHome
from draindown.ledger.foreign import NONE, ForeignCommit, ForeignCommits

_MOST = 5


def in_table(layout: FlowHome, state: Unpublished | None = None) -> ForeignCommits:
    """Return the foreign commits whose change the target has, decided about or not. `state`: as of
    that version.
    """
    seen = state or published.unpublished(layout)
    return NONE if seen is None else published.foreign(layout, seen)


def undecided(
    layout: FlowHome, flow: FlowSpec | DerivedFlow, state: Unpublished | None = None
) -> list[ForeignCommit]:
    """Return the foreign commits that nobody has decided about, oldest first. `state`: as of that
    version.
    """
    found = in_table(layout, state)
    if not found.commits:
        return []
    table = layout.tables.target
    if isinstance(flow, DerivedFlow):
        proof = proven.newest(layout)
        left = [one for one in found.commits if not one.read_again]
        return [one for one in left if proof is None or not proof.covers(table, one.version)]
    accepted = {(own.table, own.commit.mark) for own in acceptance.acceptances(layout)}
    return [one for one in found.commits if (table.id, one.mark) not in accepted]


def findings(
    layout: FlowHome, flow: FlowSpec | DerivedFlow, state: Unpublished | None = None
) -> list[Finding]:
    """Return a finding for each foreign commit that nobody has decided about, newest first; for
    many the newest.
    """
    commits = undecided(layout, flow, state)
    shown = [_finding(layout, flow, one) for one in islice(reversed(commits), _MOST)]
    if len(commits) > _MOST:
        rest = f"{count(len(commits) - _MOST, 'earlier commit')} too"
        show = f"draindown gate show {layout.pipeline}/{layout.flow}"
        shown.append(
            Finding(kind="foreign", subject=f"{layout.table_name}, earlier", detail=rest, next=show)
        )
    return shown


def _finding(layout: FlowHome, flow: FlowSpec | DerivedFlow, commit: ForeignCommit) -> Finding:
    detail = f"{commit.writer} is no batch of this flow: {commit.rows}"
    subject = f"{layout.table_name}, {commit.name}"
    return Finding(
        kind="foreign", subject=subject, detail=detail, next=deciding(layout, flow, commit)
    )


def deciding(layout: FlowHome, flow: FlowSpec | DerivedFlow, commit: ForeignCommit) -> str:
    """Return the command that shows what a foreign commit did, and lets a person decide."""
    of = f"{layout.pipeline}/{layout.flow}"
    if isinstance(flow, DerivedFlow):
        return f"draindown reset {of} --yes   # compares the whole table"
    return f"draindown gate accept {of} --version {commit.version}   # shows its rows, and how to decide"


def named(commits: Sequence[ForeignCommit]) -> str:
    """Return a few of the commits by version and operation, in words."""
    shown = ", ".join(f"{one.name} ({one.operation})" for one in commits[-3:])
    return f"{shown}{', ...' if len(commits) > 3 else ''}"
