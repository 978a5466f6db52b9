"""The graph of a pipeline's flows: which flow reads the table of which other one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter


@dataclass(frozen=True)
class FlowGraph:
    """The flows of a pipeline by the tables between them.

    `writers`: the flow that writes each table. `reads`: the tables that each flow reads, those of
    other pipelines included, in the order of the file.
    """

    writers: Mapping[str, str]
    reads: Mapping[str, tuple[str, ...]]

    def problems(self) -> Iterator[tuple[str, str, str]]:
        """Yield flow, table and message of a cycle."""
        if cycle := self._cycle():
            path = " → ".join(cycle)
            what = "reads its own table" if len(cycle) == 2 else f"depends on itself: {path}"
            yield (
                cycle[0],
                next(name for name in self.reads[cycle[0]] if self.writers.get(name) == cycle[-2]),
                what,
            )

    @property
    def order(self) -> list[str]:
        """The flows in the order they run: each after those whose tables it reads, else as in the
        file.

        Raises graphlib.CycleError if there is a cycle, which `problems` names.
        """
        waiting = {flow: self.upstream(flow) for flow in self.reads}
        TopologicalSorter(waiting).prepare()
        done: dict[str, None] = {}
        while waiting:
            ready = next(
                flow for flow, needs in waiting.items() if all(need in done for need in needs)
            )
            done[ready] = None
            del waiting[ready]
        return list(done)

    def upstream(self, flow: str) -> tuple[str, ...]:
        """Return the flows whose tables a flow reads."""
        return tuple(self.writers[table] for table in self.reads[flow] if table in self.writers)

    def _cycle(self) -> list[str]:
        """Return the flows of a cycle, the first one again at the end, each before one that reads
        it; [] if none.
        """
        try:
            TopologicalSorter({flow: self.upstream(flow) for flow in self.reads}).prepare()
        except CycleError as error:
            found: list[str] = error.args[1]
            return found
        return []
