"""Validate the text of a Great Expectations suite: kinds and arguments that GX lacks, columns that
don't exist.

It imports neither Spark nor GX, which would take seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from draindown.base.errors import TerminalError
from draindown.config.derived import DerivedFlow
from draindown.config.landing import FlowSpec
from draindown.config.names import near
from draindown.config.project import expectation_lines, suite, suite_path
from draindown.gate import suite as gate_suite
from draindown.gate import suite_arguments

_ABOUT_EXISTENCE = "expect_column_to_exist"


def refuse_wrong(root: Path, flow: FlowSpec | DerivedFlow) -> None:
    """Read the flow's suite and refuse invalid expectations. Raises TerminalError `bad-suite`."""
    name = flow.expectations
    if name is None:
        return
    found, path = suite(root, name), suite_path(root, name)
    lines = expectation_lines(path.read_text(), len(gate_suite.expectations_of(found)))
    wrong = [
        f"{path}:{lines[at]}: {what}" for at, what in problems(found, stored_columns(flow), kinds())
    ]
    if wrong:
        raise bad(name, f"read {path}", wrong)


def bad(name: str, tried: str, wrong: Collection[str]) -> TerminalError:
    """Return the error for expectations that can't be evaluated whatever the rows are.

    Only an edit of the suite helps.
    """
    return TerminalError(
        "bad-suite",
        tried=tried,
        found="\n".join(wrong),
        next=f"draindown validate   # once expectations/{name}.json is corrected",
    )


def problems(
    found: Mapping[str, Any] | None, columns: Collection[str] | None, known: Collection[str] | None
) -> Iterator[tuple[int, str]]:
    """Yield position and problem of each expectation that is wrong whatever the rows are.

    `columns` are those of the table, `known` the kinds of expectation; None if not known. Names
    that begin with `_` are draindown's own and assumed to exist. Nested names are left to Spark.
    """
    for at, (name, config) in enumerate(
        zip(gate_suite.names(found), gate_suite.expectations_of(found), strict=True)
    ):
        kind = config["type"]
        if known is not None and kind not in known:
            yield at, f"{name}: Great Expectations has no {kind!r}{near(kind, known)}"
            continue
        yield from (
            (at, f"{name}: {what}")
            for what in (suite_arguments.problems(config) if known is not None else ())
        )
        if columns is not None and kind != _ABOUT_EXISTENCE:
            there = {column.lower() for column in columns}
            for column in gate_suite.columns_of(config):
                if (
                    column.lower() not in there
                    and not column.startswith("_")
                    and not set(column) & set(".`[ ")
                ):
                    yield at, f"{name}: the table has no column {column!r}{near(column, columns)}"


@cache
def kinds() -> frozenset[str] | None:
    """Return the kinds of expectation in GX, from the names of its modules; None if GX is not
    installed.
    """
    found = {
        file.stem for place in suite_arguments.directories() for file in place.glob("core/[!_]*.py")
    }
    return frozenset(found) or None


def stored_columns(flow: FlowSpec | DerivedFlow) -> list[str] | None:
    """Return the columns of the target; None if only a run can tell."""
    if isinstance(flow, DerivedFlow):
        return flow.stored_columns
    return None if flow.transform or flow.drift.new_columns == "add" else list(flow.columns)
