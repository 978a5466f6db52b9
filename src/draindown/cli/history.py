"""What a history says of a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draindown.cli.context import Json, Setting, not_empty, setting, table_writer, table_writers
from draindown.cli.output import Output, table

if TYPE_CHECKING:
    from draindown.config.history import History
    from draindown.config.models import PipelineSpec
    from draindown.history.as_of import Answer


def as_of(
    ctx: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="TABLE", help="Table with a history, or PIPELINE/TABLE.")
    ],
    time: Annotated[
        str | None,
        typer.Argument(
            metavar="TIME",
            help="What the events say of it. As `sequence_by`: 2026-01-31T12:00Z, or a number.",
        ),
    ] = None,
    known_at: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="In place of TIME: what the table said then."),
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this key: VALUE, or COLUMN=VALUE of several. Repeatable.", callback=not_empty
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many rows.")] = 50,
    as_json: Json = False,
) -> None:
    """List the rows of a history (SCD type 2) that were valid at a time, one per key, without a
    JVM.
    """
    from draindown.history.as_of import Asked, as_stood, by_sequence

    moment = known_at if time is None else time
    if moment is None or (time and known_at):
        raise typer.BadParameter("say TIME or --known-at TIME", param_hint="TIME")
    spec, flow, part = _history(setting(ctx), name)
    asked = Asked(spec.layout(flow), part, moment, _keys(part, key or ()), limit)
    try:
        answer = by_sequence(asked) if known_at is None else as_stood(asked)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    said = f"{spec.pipeline}/{spec.flows[flow].table_name(flow)} at {moment}"
    data = {
        "at": moment,
        "by": "sequence" if known_at is None else "arrival",
        "version": answer.version,
        "number": answer.number,
        "rows": answer.rows,
    }
    Output(as_json).result(data, f"{said}  {_text(answer)}")


def _history(here: Setting, name: str) -> tuple[PipelineSpec, str, History]:
    """Return the flow that writes a table with a history. Raises a usage error if no flow or
    several do.
    """
    from draindown.config.history import HISTORY

    kept = [
        f"{spec.pipeline}/{one.table_name(flow)}"
        for spec, flow, one in table_writers(here, name)
        if one.target.history
    ]
    known = f"histories are {', '.join(kept)}" if kept else f"no flow keeps one: {HISTORY}"
    spec, flow = table_writer(here, name, known)
    part = spec.flows[flow].target.history
    if part is None:
        raise typer.BadParameter(
            f"table {name.rpartition('/')[2]} is no history; {known}", param_hint="TABLE"
        )
    return spec, flow, part


def _keys(part: History, given: Sequence[str]) -> Mapping[str, str]:
    if len(part.scope_keys) == len(given) == 1 and not given[0].startswith(
        f"{part.scope_keys[0]}="
    ):
        return {part.scope_keys[0]: given[0]}
    pairs = {column: value for column, _, value in (one.partition("=") for one in given)}
    wrong = [column for column in pairs if column not in part.scope_keys]
    if wrong or len(pairs) < len(given):
        raise typer.BadParameter(
            f"say COLUMN=VALUE once each; columns are {', '.join(part.scope_keys)}"
        )
    return pairs


def _text(answer: Answer) -> str:
    from draindown.base.formatting import count, printable

    said = f"{count(answer.number, 'row')} of version {answer.version}"
    if answer.number > len(answer.rows):
        said += f", the first {len(answer.rows)}"
    cells = [[printable(_shown(row[name]), 60) for name in answer.columns] for row in answer.rows]
    return "\n".join([said, *([table(answer.columns, cells)] if cells else [])])


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(map(_shown, value.values()))
    return "" if value is None else str(value)
