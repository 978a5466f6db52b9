"""The pipeline file as frozen models: names, defaults, and combinations that can't work. No YAML,
no IO.

A problem that concerns several keys is raised as one `PydanticCustomError` whose context lists
(path, message) pairs. The loader reports each of them at its position.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

from pydantic import (
    Discriminator,
    Field,
    PrivateAttr,
    Tag,
    field_validator,
    model_validator,
)

from draindown.base.errors import TerminalError
from draindown.config import reading
from draindown.config.airflow_settings import AirflowSpec
from draindown.config.base import Model, Problem, refuse
from draindown.config.derived import KINDS, DerivedFlow
from draindown.config.flow_graph import FlowGraph
from draindown.config.landing import FlowSpec
from draindown.config.lease import LeaseSpec
from draindown.config.names import Identifier, lake_root, near
from draindown.config.neighbours import Neighbours, Reader
from draindown.config.schedule import Schedule
from draindown.config.table_source import TableSource
from draindown.lake.home import FlowHome


def form_of(flow: object) -> str:
    """Return the tag of a flow's model. A source that names a table makes a flow derived, whatever
    else it has.
    """
    source = flow.get("source") if isinstance(flow, dict) else getattr(flow, "source", None)
    tables = isinstance(source, TableSource) or (
        isinstance(source, dict) and not {"table", "tables"}.isdisjoint(source)
    )
    parts = isinstance(flow, dict) and not KINDS.keys().isdisjoint(flow)
    return DERIVED_FORM if tables or (parts and not isinstance(source, dict)) else LANDING_FORM


LANDING_FORM, DERIVED_FORM = "[landing]", "[derived]"
"""Tags of the two models of a flow. Errors have them in their path, where the file has nothing."""
AnyFlow = Annotated[
    Annotated[FlowSpec, Tag(LANDING_FORM)] | Annotated[DerivedFlow, Tag(DERIVED_FORM)],
    Discriminator(form_of),
]


class PipelineSpec(Model):
    """One pipeline file: one Airflow DAG."""

    pipeline: Identifier = Field(
        description="Name of the pipeline and of its DAG.", examples=["flights"]
    )
    description: str = Field(default="", description="One sentence for people; the DAG shows it.")
    schedule: Schedule = Field(
        default=None,
        description="Cron line or preset, in UTC or `airflow.timezone`; absent or manual: manual runs only.",
        examples=["*/15 * * * *"],
    )
    owner: str = Field(
        default="draindown", min_length=1, description="Who answers for it; the DAG's owner."
    )
    lake: str = Field(
        min_length=1,
        description="Root of everything the pipeline writes: a directory this machine sees.",
        examples=["${DRAINDOWN_LAKE:-lake}"],
    )
    tags: list[Annotated[str, Field(min_length=1, max_length=100)]] = Field(
        default_factory=list, description="Tags of the DAG.", examples=[["flights", "hourly"]]
    )
    airflow: AirflowSpec = Field(
        default_factory=AirflowSpec,
        description="How Airflow runs the tasks.",
        examples=[{"retries": 3, "pool": "spark"}],
    )
    lease: LeaseSpec = Field(
        default_factory=LeaseSpec,
        description="How drivers on several hosts exclude each other; absent: they can't.",
    )
    flows: dict[Identifier, AnyFlow] = Field(
        min_length=1,
        description="The flows, by name. A flow runs after those whose tables it reads.",
    )

    _places: Mapping[tuple[str, ...], str] = PrivateAttr(default_factory=dict)
    _neighbours: Neighbours = PrivateAttr(default_factory=Neighbours)
    _environment: str = PrivateAttr(default="")

    def __eq__(self, other: object) -> bool:
        # positions in the file and other files are not part of the spec's value
        return isinstance(other, PipelineSpec) and dict(self) == dict(other)

    __hash__ = None  # type: ignore[assignment]

    def written_at(self, places: Mapping[tuple[str, ...], str]) -> PipelineSpec:
        """Return a copy of the spec with the positions of its expressions: `file:line:column` by
        path.
        """
        found = self.model_copy()
        found._places = dict(places)
        return found

    def within(self, environment: str) -> PipelineSpec:
        """Return a copy of the spec that says for which environment of the project it was made."""
        found = self.model_copy()
        found._environment = environment
        return found

    @property
    def environment(self) -> str:
        """The environment for which the spec was made; "" in a project without environments."""
        return self._environment

    def beside(self, neighbours: Neighbours) -> PipelineSpec:
        """Return the spec with what other pipeline files say: who writes the tables of theirs that
        it reads.
        """
        found = self.model_copy()
        found._neighbours = neighbours
        reading.name_writers(found.flows, neighbours)
        return found

    def placed(self, root: Path) -> PipelineSpec:
        """Return the spec, whose flows take what they name from the project's directory, unless
        they did so before.
        """
        for flow in reading.derived(self.flows).values():
            flow.derivation.placed(root)
            flow.settle()
        return self

    @property
    def neighbours(self) -> Neighbours:
        """What other pipeline files of the project say of the tables of this pipeline, and of those
        that it reads.
        """
        return self._neighbours

    def readers(self, table: str) -> list[Reader]:
        """Return the flows that read a table, first those of this pipeline, in the order of the
        file.
        """
        own = reading.readers(self.pipeline, self.flows)
        return [one for one in (*own, *self._neighbours.readers) if one.table == table]

    def place_of(self, *path: str) -> str:
        """Return the position of the value at a path as `file:line:column`; empty if it is not
        known.
        """
        return self._places.get(path, "")

    @field_validator("lake")
    @classmethod
    def _lake_root(cls, value: str) -> str:
        return lake_root(value)

    @model_validator(mode="after")
    def _combination(self) -> PipelineSpec:
        refuse(list(self._writer_problems()))  # the graph needs one writer per table
        refuse(list(reading.problems(self.flows)))
        reading.name_writers(self.flows)
        refuse(list(reading.key_problems(self.flows)))
        return self

    def _writer_problems(self) -> Iterable[Problem]:
        owners: dict[str, str] = {}
        for name, flow in self.flows.items():
            first = owners.setdefault(flow.table_name(name), name)
            if first != name:
                where = ("flows", name, "target", "table") if flow.target.table else ("flows", name)
                table = flow.table_name(name)
                yield where, f"writes table {table!r} as flow {first!r} does: one writer each"

    @property
    def graph(self) -> FlowGraph:
        """The flows by the tables between them."""
        return reading.graph(self.flows)

    def declared(self, name: str) -> FlowSpec | DerivedFlow:
        """Return the flow of that name. Raises TerminalError `unknown-flow`, which lists the
        flows.
        """
        if name not in self.flows:
            known = ", ".join(self.flows)
            raise TerminalError(
                "unknown-flow",
                tried=f"find flow {name!r} in pipeline {self.pipeline}",
                found=f"it has {known}{near(name, self.flows)}",
                next=f"draindown validate {self.pipeline}",
            )
        return self.flows[name]

    def is_derived(self, name: str) -> bool:
        """Return whether the flow of that name is derived. Raises TerminalError `unknown-flow`."""
        return isinstance(self.declared(name), DerivedFlow)

    def flow(self, name: str) -> FlowSpec:
        """Return the landing flow of that name. Raises TerminalError `unknown-flow`,
        `derived-flow`.
        """
        found = self.declared(name)
        if isinstance(found, DerivedFlow):
            raise TerminalError(
                "derived-flow",
                tried=f"use flow {name} of pipeline {self.pipeline} as one that reads records",
                found=f"it is derived from {found.source}: it has no input files, rules or quarantine",
                changed="nothing",
                next=[
                    f"draindown reset {self.pipeline}/{name}   # computes it again, and writes what differs",
                    f"draindown plan {self.pipeline}/{name}   # what waits at its source",
                ],
            )
        return found

    def layout(self, flow_name: str) -> FlowHome:
        """Return the paths of the flow's tables and files. Raises TerminalError `unknown-flow`."""
        flow = self.declared(flow_name)
        table = flow.table_name(flow_name)
        return FlowHome(
            self.lake,
            self.pipeline,
            flow_name,
            table,
            own_intakes=flow.source.own_intakes,
            has_sinks=bool(flow.sinks),
        )
