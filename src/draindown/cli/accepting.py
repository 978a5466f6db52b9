"""The command that accepts what a foreign commit did to rows of a target, and what `gate show` says
of such commits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from draindown.cli.context import (
    Json,
    OneFlow,
    Yes,
    one_flow,
    person,
    refuse_without,
    setting,
)
from draindown.cli.output import Output

if TYPE_CHECKING:
    from draindown.config.models import PipelineSpec
    from draindown.ledger.foreign import ForeignCommit


def accept(
    ctx: typer.Context,
    target: OneFlow,
    version: Annotated[
        int, typer.Option(min=0, help="Version of the commit, as `gate show` lists it.")
    ],
    note: Annotated[
        str, typer.Option(help="Why its rows are right; required with --yes, and kept.")
    ] = "",
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Accept the rows of a commit that is no batch of the flow. Compares the table before and after
    the commit.

    The audit counts these rows as accepted, and `why` names the reason.
    """
    from draindown.flow import foreign_rows
    from draindown.gate import acceptance

    here, out = setting(ctx), Output(as_json)
    spec = here.spec(target.pipeline)
    name = one_flow(spec, target)
    commit = _undecided(spec, name, version)
    layout = spec.layout(name)
    found = foreign_rows.changed_by(layout, spec.flow(name), commit)
    exact = commit.model_copy(update=_counts(found.inserted, found.updated, found.deleted))
    out.note(_plan(spec, name, exact))
    if yes and not note.strip():
        raise typer.BadParameter("say why, for those who ask later", param_hint="--note")
    refuse_without(yes)
    accepted = acceptance.accept(layout, commit, found, by=person(), reason=note)
    data = {"pipeline": spec.pipeline, "flow": name, **accepted.model_dump(mode="json")}
    out.result(data, f"accepted {accepted.commit.name}: {accepted.rows}")


def _counts(inserted: int, updated: int, deleted: int) -> dict[str, int]:
    return {"inserted": inserted, "updated": updated, "deleted": deleted}


def _plan(spec: PipelineSpec, flow: str, commit: ForeignCommit) -> str:
    of, to = f"{spec.pipeline}/{flow}", commit.version - 1
    undo = f"RESTORE TABLE ... TO VERSION AS OF {to} undoes it, as long as no batch came after it"
    lines = [
        f"accept {spec.pipeline}/{flow}: {commit}",
        "  the audit counts these rows as accepted; a rebuild drops them, and says so before",
        f"  instead  {undo}" if commit.first is None else "",
        f"  instead  draindown rebuild {of}   # reads all input into a fresh table",
    ]
    return "\n".join(filter(None, lines))


def _undecided(spec: PipelineSpec, flow: str, version: int) -> ForeignCommit:
    """Return the undecided foreign commit of a version. Raises TerminalError `derived-flow`,
    `nothing-to-accept`.
    """
    from draindown.base.errors import TerminalError
    from draindown.flow import foreign

    of = f"{spec.pipeline}/{flow}"
    tried = f"accept version {version} of the table of flow {flow} of pipeline {spec.pipeline}"
    if spec.is_derived(flow):
        raise TerminalError(
            "derived-flow",
            tried=tried,
            found="the flow is derived: its rows follow from its sources, so rows of another writer are never right",
            changed="nothing",
            next=f"draindown reset {of} --yes   # compares the whole table with its sources",
        )
    commits = foreign.undecided(spec.layout(flow), spec.flow(flow))
    chosen = next(
        (one for one in commits if (one.first or one.version) <= version <= one.version), None
    )
    if chosen is None:
        raise TerminalError(
            "nothing-to-accept",
            tried=tried,
            found=f"undecided commits of others: {foreign.named(commits) or 'none'}",
            changed="nothing",
            next=f"draindown gate show {of}",
        )
    return chosen


def shown(spec: PipelineSpec, flow: str) -> dict[str, Any]:
    """Return the undecided foreign commits, and the acceptances that count, as JSON-ready data."""
    from draindown.flow import foreign
    from draindown.gate import acceptance

    layout, declared = spec.layout(flow), spec.declared(flow)
    commits = foreign.undecided(layout, declared)
    accepted = acceptance.standing(layout, foreign.in_table(layout))
    return {
        "foreign": [
            one.model_dump(mode="json") | {"next": foreign.deciding(layout, declared, one)}
            for one in commits
        ],
        "accepted": [one.model_dump(mode="json") for one in accepted],
    }


def lines(state: dict[str, Any]) -> list[str]:
    """Return the lines about what `shown` returned."""
    from draindown.base.formatting import printable
    from draindown.gate.acceptance import Acceptance
    from draindown.ledger.foreign import ForeignCommit

    told = []
    for one in state.get("foreign", []):
        told += [
            f"  WRONG      {printable(str(ForeignCommit.model_validate(one)))}",
            f"    next: {one['next']}",
        ]
    accepted = [Acceptance.model_validate(one) for one in state.get("accepted", [])]
    return [*told, *(f"  accepted   {printable(str(one))}" for one in accepted)]
