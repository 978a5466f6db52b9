"""What the batches before resolved their rows by, for strategies whose next batch must do it the
same way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from draindown.flow import generations
from draindown.ledger import table as ledger_table
from draindown.spark.targets.delta_target import Writer


def last_definition(writer: Writer, form: str) -> dict[str, list[str]] | None:
    """Return what the newest batch wrote down, if it is of this form and the table is the one that
    it wrote to.

    None otherwise: after a reset that put the table aside, nothing is in the new one yet.
    """
    layout = writer.layout
    last = next(iter(ledger_table.recent(layout, 1)), None)
    if last is None or last.form != form or not last.history:
        return None
    if not generations.knows(layout, last.generation):
        return None
    found: dict[str, list[str]] = json.loads(last.history)
    return found


def differing(was: Mapping[str, Sequence[str]], now: Mapping[str, Sequence[str]]) -> str:
    """Return which columns differ, by what they are for, in words; empty if none do."""
    changed = [name for name in now if sorted(was[name]) != sorted(now[name])]
    return "; ".join(
        f"{name}: {', '.join(was[name])} before, {', '.join(now[name]) or 'none'} now"
        for name in changed
    )


def ways_on(writer: Writer, again: str) -> list[str]:
    """Return what helps where they differ. `again`: what a rebuild does, in words."""
    layout = writer.layout
    return [
        f"put the spec back, then: draindown run {layout.pipeline}",
        f"draindown rebuild {layout.pipeline}/{layout.flow}   # {again}",
    ]
