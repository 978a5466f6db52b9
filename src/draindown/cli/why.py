"""Why a row is in a table, or is not: the records behind it, down to the file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from draindown.cli.context import Json, not_empty, setting, table_writer, table_writers
from draindown.cli.output import Output

_NULL = " is null"


def why(
    ctx: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="TABLE", help="Table of a flow, or PIPELINE/TABLE.")
    ],
    key: Annotated[
        list[str],
        typer.Option(
            help="The key: VALUE, or COLUMN=VALUE of several, or 'COLUMN is null'. Without keys: UNIT:POSITION.",
            callback=not_empty,
        ),
    ],
    every: Annotated[
        bool, typer.Option("--all", help="Its records in every batch, not only in the newest.")
    ] = False,
    limit: Annotated[
        int,
        typer.Option(
            min=1, help="At most so many rows with the key, and source rows of each of them."
        ),
    ] = 20,
    as_json: Json = False,
) -> None:
    """Say why a table has a row, or has none with a key: the batch, file and record, and what lost
    against it.

    Of a derived table the source rows, then the records behind these. Starts no JVM and changes
    nothing.
    """
    from draindown.provenance.why import Question
    from draindown.provenance.why import why as answer

    here, out = setting(ctx), Output(as_json)
    known = ", ".join(
        f"{spec.pipeline}/{one.table_name(flow)}" for spec, flow, one in table_writers(here, name)
    )
    spec, flow = table_writer(
        here, name, f"tables are {known}" if known else "the project has none"
    )
    columns = spec.declared(flow).target.row_keys
    asked = Question(
        spec=spec,
        flow=flow,
        root=here.root,
        key=_key(columns, key),
        limit=limit,
        every=every,
        specs=here.spec,
        progress=lambda unit: out.progress(f"looking into {unit}"),
    )
    try:
        traces = answer(asked)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--key") from None
    finally:
        out.progress_done()
    if len(traces) == limit:
        out.note(f"the first {limit} rows with this key; --limit shows more")
    table = f"{spec.pipeline}/{spec.declared(flow).table_name(flow)}"
    out.result(
        {"table": table, "rows": [one.as_dict() for one in traces]}, "\n\n".join(map(str, traces))
    )


def _key(columns: Sequence[str], given: Sequence[str]) -> dict[str, str | None]:
    """Return the value of each key column as text, None for NULL; without keys that of the origin.
    Raises a usage error.
    """
    from draindown.provenance.foreign import ORIGIN

    if not columns:
        if len(given) != 1:
            raise typer.BadParameter(
                "the table has no keys: say UNIT:POSITION, as `_origin` has them",
                param_hint="--key",
            )
        return {ORIGIN: given[0].removeprefix(f"{ORIGIN}=")}
    values: dict[str, str | None] = {}
    for text in given:
        name, equals, value = text.partition("=")
        null_name = text.removesuffix(_NULL)
        if null_name != text and null_name in columns:
            values[null_name] = None
        elif equals and name in columns:
            values[name] = value
        elif len(columns) == 1:
            values[columns[0]] = text
    # fewer if a text names no key column, or one that another text names
    if len(values) < len(given):
        raise typer.BadParameter(
            f"say COLUMN=VALUE once each; columns are {', '.join(columns)}", param_hint="--key"
        )
    return values
