"""Refuse a table that is not as its flow says it now."""

from __future__ import annotations

from pyspark.sql.types import StructType

from draindown.base.errors import TerminalError
from draindown.config.derived import DerivedFlow
from draindown.config.landing import FlowSpec
from draindown.lake.home import FlowHome
from draindown.lake.table import Table
from draindown.spark.targets import identity
from draindown.spark.targets.table_schema import differences, other_form


def refuse_mismatch(
    layout: FlowHome,
    flow: FlowSpec | DerivedFlow,
    log: Table,
    held: StructType,
    schema: StructType,
) -> None:
    """Refuse to write rows of `schema` to the target, of schema `held`, or to what is remembered
    beside it.

    `log`: the target's.

    Raises TerminalError `table-mismatch`.
    """
    differing = list(differences(held, schema))
    differing += other_form(held, schema) if isinstance(flow, FlowSpec) else ()
    partitions = log.partition_columns
    if partitions != flow.target.partition_by:
        differing.append(
            f"the table is partitioned by {partitions}, the spec by {flow.target.partition_by}"
        )
    differing += identity.differing(log, flow)
    if not identity.is_known(log):
        differing += _not_remembered(layout, flow)
    if differing:
        raise TerminalError(
            "table-mismatch",
            tried=f"write to {layout.tables.target.path}",
            found="; ".join(differing),
            next=[
                f"put the spec back, then: draindown run {layout.pipeline}",
                f"draindown rebuild {layout.pipeline}/{layout.flow}   "
                "# reads all input again into a table as the spec says it",
            ],
        )


def _not_remembered(layout: FlowHome, flow: FlowSpec | DerivedFlow) -> list[str]:
    """Return what the tombstones lack of keys and sequence: without it, which change is newer can't
    be told.
    """
    log = layout.tables.tombstones
    if flow.target.kind.memory != "tombstones" or not log.exists:
        return []
    held = log.column_types
    lacking = [name for name in flow.target.essential if name not in held]
    return (
        [f"deletes are remembered without {', '.join(lacking)}, which keys or sequence name"]
        if lacking
        else []
    )
