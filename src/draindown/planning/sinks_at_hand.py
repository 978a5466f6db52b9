"""Checks of `validate` about sinks: clients and secrets, and with `--strict` whether they could
take a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from draindown.base.errors import DraindownError
from draindown.base.secrets import names_in, resolved
from draindown.config.models import PipelineSpec
from draindown.config.project import rooted
from draindown.config.sinks import FlowSink
from draindown.flow import sink_columns
from draindown.runs.request import Request
from draindown.sinks import registry


def problems(spec: PipelineSpec, root: Path, *, ask: bool) -> Iterator[DraindownError]:
    """Yield an error for each sink that this machine cannot send to. `ask`: whether to connect to
    the sinks.
    """
    if not any(flow.sinks for flow in spec.flows.values()):
        return
    placed = rooted(spec, root)
    for flow in spec.flows:
        request = Request(spec=placed, flow=flow, step="plan", run_id="validate", root=str(root))
        for name, sink in request.declared.sinks.items():
            error = _problem(request, name, sink, ask=ask)
            if error is not None:
                place = (
                    spec.place_of("flows", flow, "sinks", name, sink.kind) or f"{flow}: sink {name}"
                )
                error.found = f"{place}: {error.found}"
                yield error


def _problem(request: Request, name: str, sink: FlowSink, *, ask: bool) -> DraindownError | None:
    try:
        with closing(registry.sink_of(sink, sink_columns.place_of(request, name))):
            for secret in _secrets(sink):
                resolved(f"${{secret:{secret}}}")
        if ask:
            sink_columns.refuse_unready_sink(request, request.layout, name)
    except DraindownError as error:
        return error
    return None


def _secrets(sink: FlowSink) -> list[str]:
    texts = (value for value in sink.part.model_dump().values() if isinstance(value, str))
    return [name for text in texts for name in names_in(text)]
