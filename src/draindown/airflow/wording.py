"""The documentation of a DAG in the Airflow UI: what it does, and what retry, clear, a manual run
and a backfill do.
"""

from __future__ import annotations

from draindown.config.derived import DerivedFlow
from draindown.config.landing import FlowSpec
from draindown.config.loader import BrokenPipeline
from draindown.config.models import PipelineSpec

_STEPS = """
**plan-all** looks at all flows at once; those that have nothing to do, and that the run brings nothing, are skipped.
Each other flow runs **plan → drain → check → compact**. Neither plan starts a JVM. A flow runs after the `check` of
those whose tables it reads. An idle flow stops none, a failed one those that read from it.

| you do | what happens |
| --- | --- |
| **retry** or **clear** a task | goes on after the last finished batch; a half-done batch is done again, once |
| **trigger** the DAG | drains what is waiting now; two runs never drain one flow at the same time |
| trigger, mode **replay** | reads again what was first seen in a range of time, beside the stream; newer rows stay |
| **backfill** dates | each run replays what was first seen in its interval, once; leaves flows without keys out |
| **mark failed** | the driver stops; the next run goes on where it was |

**To read dates again that have run, trigger with mode replay** and fill in *From* and *To*. A backfill leaves out every
date that has a run, without a word (reprocess behavior *Missing runs*, `none` in the CLI, which is Airflow's default);
*All runs* (`completed`) clears those runs and makes them runs of the backfill.

A red task ends its log with what was tried, what was found, whether anything changed, and the command that helps.
*Retry helps* where Airflow retries by itself; where it fails at once, a person must act.
"""


def doc_of(spec: PipelineSpec) -> str:
    """Return the documentation of a DAG in Markdown."""
    rows = [_row(spec, name) for name in spec.flows]
    head = "| flow | reads | table | writes | expectations |\n| --- | --- | --- | --- | --- |"
    where = [f"Environment: **{spec.environment}**", ""] if spec.environment else []
    return "\n".join([spec.description, "", *where, head, *rows, _STEPS])


def doc_of_broken(found: BrokenPipeline) -> str:
    """Return the documentation of a DAG whose file can't be read: the error, its position, and what
    to type.
    """
    fenced = str(found.error).replace("```", "'''")
    when = f"as scheduled (`{found.schedule}`, UTC)" if found.schedule else "when it is triggered"
    return (
        f"**`{found.path.name}` can't be read**, so this pipeline drains nothing: each run, {when}, fails with this "
        "error. Other pipelines are not concerned.\n\n"
        f"```\n{fenced}\n```\n\nCheck it with `draindown validate {found.path}`; this page follows within a minute."
    )


def _row(spec: PipelineSpec, name: str) -> str:
    flow = spec.flows[name]
    cells = (
        name,
        _source(flow),
        f"`{flow.table_name(name)}`",
        _write(spec, name),
        flow.expectations or "none",
    )
    return f"| {' | '.join(cells)} |"


def _source(flow: FlowSpec | DerivedFlow) -> str:
    if isinstance(flow, DerivedFlow):
        return ", ".join(f"table `{one}`" for one in flow.source.read)
    return f"`{_cell(flow.source.place)}` ({flow.source.format})"


def _write(spec: PipelineSpec, name: str) -> str:
    flow = spec.flows[name]
    if isinstance(flow, DerivedFlow):
        return f"equal to its {flow.kind}, one row per {_cell(', '.join(flow.target.row_keys))}"
    target = flow.target
    if not target.keys:
        return "append"
    if target.history is not None:
        return _cell(target.history.in_words)
    newest = "newest row" if target.partial is None else "newest value of each column"
    return f"{newest} per {_cell(', '.join(target.keys))}, ordered by {_cell(', '.join(target.sequence_by))}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
