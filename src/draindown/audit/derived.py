"""Derived flows in an audit of the whole project: their tables are not recomputed, and the newest
certificate says what is known.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from draindown.config.models import PipelineSpec
from draindown.flow import proven
from draindown.flow.proven import Proven


@dataclass(frozen=True)
class Unaudited:
    """A derived flow. `version`: of its table, None if there is none. `proof`: the newest
    certificate of this table.
    """

    pipeline: str
    flow: str
    version: int | None
    proof: Proven | None

    @property
    def clean(self) -> bool:
        """Whether no certificate says that the table, as it is now, has wrong rows."""
        return self.proof is None or self.proof.holds or self.proof.table_version != self.version

    @property
    def next(self) -> str:
        """The command that compares the table, or mends what a proof found."""
        if self.version is None:
            return f"draindown run {self.pipeline}/{self.flow}"
        verb = "audit" if self.clean else "reset"
        return f"draindown {verb} {self.pipeline}/{self.flow}"

    def __str__(self) -> str:
        lines = [
            f"{self.pipeline}/{self.flow}  derived: not recomputed",
            f"  proof  {self._found}",
        ]
        current = self.proof is not None and self.proof.table_version == self.version
        return "\n".join([*lines, *([] if current and self.clean else [f"  next: {self.next}"])])

    @property
    def _found(self) -> str:
        if self.proof is None:
            return (
                "the flow has no table yet"
                if self.version is None
                else "never: no row was compared with the query"
            )
        since = (
            ""
            if self.proof.table_version == self.version
            else f"; not proven since: version {self.version}"
        )
        return f"{self.proof}{since}"

    def asdict(self) -> dict[str, Any]:
        """Return it as a JSON-ready dict."""
        return {
            "pipeline": self.pipeline,
            "flow": self.flow,
            "clean": self.clean,
            "audited": False,
            "version": self.version,
            "proof": self.proof and asdict(self.proof),
            "next": self.next,
        }


def unaudited(spec: PipelineSpec, flow: str) -> Unaudited:
    """Return what is known of a derived flow's table. Raises TerminalError `state-damaged`."""
    layout = spec.layout(flow)
    table, last = layout.tables.target, proven.newest(layout)
    of_table = last is not None and table.exists and table.id == last.table_id
    return Unaudited(
        spec.pipeline, flow, table.version if table.exists else None, last if of_table else None
    )
