"""Checks of `validate` beyond the pipeline file: its suites, and what it needs from the machine
that runs it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from draindown.base.errors import DraindownError, TerminalError
from draindown.config.landing import FlowSpec
from draindown.config.models import PipelineSpec
from draindown.gate import suite_validation
from draindown.planning import sinks_at_hand
from draindown.processors import loading
from draindown.runs.request import Request
from draindown.sources.registry import source_of


def errors(spec: PipelineSpec, root: Path) -> Iterator[TerminalError]:
    """Yield one error per invalid suite. These are errors on every machine."""
    for flow in spec.flows.values():
        try:
            suite_validation.refuse_wrong(root, flow)
        except TerminalError as error:
            yield error


def warnings(spec: PipelineSpec, root: Path, *, strict: bool) -> Iterator[DraindownError]:
    """Yield one error per item that this machine lacks. The machine that runs the pipeline may have
    it.

    `strict`: whether sinks are asked, which may take until their timeouts.
    """
    yield from sinks_at_hand.problems(spec, root, ask=strict)
    for name, flow in spec.flows.items():
        if isinstance(flow, FlowSpec):
            yield from _source(spec, name, flow, root)
            yield from _transform(spec, name, flow, root)
            yield from _null_values(spec, name, flow)
        elif flow.processor is not None:
            yield from _processor(spec, name, flow.processor.of, root)


def _source(spec: PipelineSpec, name: str, flow: FlowSpec, root: Path) -> Iterator[TerminalError]:
    asked = Request(spec=spec, flow=name, step="plan", run_id="validate", root=str(root))
    if lacking := source_of(asked).out_of_reach():
        found, next_ = lacking
        yield TerminalError(
            "source-missing",
            tried=f"find the source of flow {name} of pipeline {spec.pipeline}",
            found=f"{spec.place_of('flows', name, 'source', flow.source.kind) or name}: {found}",
            next=next_,
        )


def _null_values(spec: PipelineSpec, name: str, flow: FlowSpec) -> Iterator[TerminalError]:
    if flow.refuses_null_of_keys:
        yield TerminalError(
            "null-value-refused",
            tried=f"find what a record without a value means to flow {name} of pipeline {spec.pipeline}",
            found=f"{spec.place_of('flows', name, 'target') or name}: its key comes from the message, but not all keys "
            "do, or the record's timestamp does not come first in sequence_by; so it deletes nothing, and is refused",
            next=f"draindown validate {spec.pipeline}   # to delete by it: all keys `from: key`, sequence_by a column "
            "`from: timestamp`, then at most the offset",
        )


def _transform(
    spec: PipelineSpec, name: str, flow: FlowSpec, root: Path
) -> Iterator[TerminalError]:
    problem = (
        _code_problem(flow.transform, root / "jobs" / "transforms", "function")
        if flow.transform
        else None
    )
    if problem:
        yield TerminalError(
            "transform-missing",
            tried=f"find transform {flow.transform} of flow {name} of pipeline {spec.pipeline}",
            found=f"{spec.place_of('flows', name, 'transform') or name}: {problem}",
            next=f"draindown validate {spec.pipeline}   # once it is there",
        )


def _processor(spec: PipelineSpec, name: str, dotted: str, root: Path) -> Iterator[TerminalError]:
    problem = _code_problem(dotted, root / loading.DIRECTORY, "class")
    if problem:
        yield TerminalError(
            "processor-missing",
            tried=f"find processor {dotted} of flow {name} of pipeline {spec.pipeline}",
            found=f"{spec.place_of('flows', name, 'processor') or name}: {problem}",
            next=f"draindown validate {spec.pipeline}   # once it is there",
        )


def _code_problem(dotted: str, directory: Path, what: str) -> str | None:
    """Return why a function or class can't be found, or None. Parses its module; importing it would
    run it.
    """
    module, _, named = dotted.rpartition(".")
    path = directory.joinpath(*module.split(".")).with_suffix(".py")
    try:
        tree = ast.parse(path.read_bytes())
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    except (SyntaxError, ValueError) as error:
        return f"{path}:{getattr(error, 'lineno', None) or 1}: {error}"
    return None if named in _top_names(tree) else f"{path} has no {what} {named}"


def _top_names(tree: ast.Module) -> set[str]:
    """Return the names that the module may define: everything that it defines, imports or
    assigns.
    """
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found.add(node.name)
            case ast.Name(ctx=ast.Store()):
                found.add(node.id)
            case ast.alias():
                found.add((node.asname or node.name).split(".")[0])
    return found
