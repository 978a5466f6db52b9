"""The single argument of a job: resolved spec, run identity and bounds, compressed. It holds no
secrets.
"""

from __future__ import annotations

import base64
import json
import secrets
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from draindown.base.errors import TerminalError
from draindown.config.derived import DerivedFlow
from draindown.config.landing import FlowSpec
from draindown.config.models import PipelineSpec
from draindown.config.names import near
from draindown.config.neighbours import Neighbours
from draindown.config.sinks import expressions
from draindown.lake.formats import FIELD, FORMAT, refuse_unknown
from draindown.lake.home import FlowHome

Step = Literal["plan", "drain", "check", "compact"]
STEPS: tuple[Step, ...] = get_args(Step)
"""The steps, in the order of a run."""
MAX_BYTES = 100 * 1024  # Linux limits one argv string to 128 KiB
_MAX_DECODED = 8 * 1024 * 1024
_STAMP = "%Y-%m-%dT%H-%M-%S.%f"


def new_start(after: str = "") -> str:
    """Return a new id for a start of a step. It sorts by time, and after the id `after`; it is a
    safe file name.

    Clocks may be set back, and differ between hosts, so the id of a start that follows another one
    may be ahead of the clock.
    """
    at, before = datetime.now(UTC), begun_at(after)
    if before is not None and before >= at:
        at = before + timedelta(microseconds=1)
    return f"{at:{_STAMP}}_{secrets.token_hex(2)}"


def begun_at(start: str) -> datetime | None:
    """Return when a start began, by its id, which may be ahead of the clock; None if the id doesn't
    tell.
    """
    try:
        return datetime.strptime(start.rpartition("_")[0], _STAMP).replace(tzinfo=UTC)
    except ValueError:
        return None


class Again(BaseModel):
    """Input to be read again: first seen in [since, until), or the named units of the source.

    With `again`, also input that was replayed before. `of_all`: asked of all flows of a run, so
    that one that can't read input again is left out.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    since: AwareDatetime | None = None
    until: AwareDatetime | None = None
    units: tuple[str, ...] = ()
    again: bool = False
    of_all: bool = False

    @property
    def times(self) -> str:
        """The range as options of a command."""
        return f"--from {_iso(self.since)} --to {_iso(self.until)}"

    @property
    def options(self) -> str:
        """The range and `--again` as options of a command."""
        return self.times + (" --again" if self.again else "")


def _iso(at: datetime | None) -> str:
    return "?" if at is None else at.astimezone(UTC).isoformat()


class Request(BaseModel):
    """The work of one step of one flow. `encode` and `decode` are inverses."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = FORMAT
    spec: PipelineSpec
    flow: str
    step: Step
    run_id: str
    start: str = Field(
        default_factory=new_start,
        max_length=100,
        description="this start of the step; each leaves its own report",
    )
    try_number: int = 1
    command: str = Field(
        default="", description="the command that goes on with the same work; empty: a run does"
    )
    owner: str = Field(
        default="", description="who started it, for the lease's card: DAG run or user@host"
    )
    root: str = Field(
        description="project root: relative landing globs, lake and transforms are found from here"
    )
    suite: dict[str, Any] | None = Field(
        default=None, description="the flow's Great Expectations suite, as GX writes it"
    )
    environment: str = Field(
        default="", description="the project's environment; empty in a project without any"
    )
    max_batches: int | None = None
    max_duration: float | None = Field(
        default=None, description="seconds after which no further batch is started"
    )
    force: bool = Field(default=False, description="compact even without evidence")
    quarantine_ids: tuple[str, ...] | None = Field(
        default=None, description="replay these quarantined rows instead"
    )
    replay: Again | None = Field(
        default=None, description="read this input again instead, beside the checkpoint"
    )
    places: dict[str, str] = Field(
        default_factory=dict,
        description="file:line:column of the flow's expressions, by their path in the flow",
    )
    neighbours: Neighbours = Field(
        default_factory=Neighbours,
        description="what the other pipeline files say of tables that are read across",
    )
    staged: int = Field(
        default=0, description="the generation to rebuild beside the live tables; 0: the live ones"
    )
    then: tuple[Step, ...] = Field(
        default=(), description="steps that the same driver does next, if this one ends well"
    )
    announces: bool = Field(
        default=False, description="what a check publishes is announced by its task's asset event"
    )
    after: str = Field(
        default="",
        description="start of the drain whose driver does this step; empty: its own driver",
    )

    @model_validator(mode="before")
    @classmethod
    def _placed(cls, given: Any) -> Any:
        """Copy the positions of expressions, and the neighbours, from a spec that was loaded from a
        file.
        """
        spec = given.get("spec") if isinstance(given, dict) else None
        if isinstance(spec, PipelineSpec):
            given = {"neighbours": spec.neighbours, "environment": spec.environment, **given}
        if (
            not isinstance(spec, PipelineSpec)
            or given.get("flow") not in spec.flows
            or "places" in given
        ):
            return given
        flow = given["flow"]
        said = [*spec.flows[flow].expressions, *expressions(spec.flows[flow].sinks)]
        found = {".".join(path): spec.place_of("flows", flow, *path) for path in said}
        return {**given, "places": {path: place for path, place in found.items() if place}}

    @model_validator(mode="after")
    def _one_of(self) -> Request:
        if self.replay is not None and self.quarantine_ids is not None:
            raise ValueError("a request replays input or quarantined rows, not both")
        if self.flow not in self.spec.flows:
            raise ValueError(f"the pipeline has no flow {self.flow!r}")
        # a decoded spec knows no neighbours yet
        spec = self.spec.within(self.environment).beside(self.neighbours)
        object.__setattr__(self, "spec", spec.placed(Path(self.root)))
        return self

    @property
    def flow_spec(self) -> FlowSpec:
        """The spec of the request's flow, a landing flow. Raises TerminalError `derived-flow`."""
        return self.spec.flow(self.flow)

    @property
    def declared(self) -> FlowSpec | DerivedFlow:
        """The spec of the request's flow, landing or derived."""
        return self.spec.flows[self.flow]

    @property
    def resume(self) -> str:
        """The command that goes on where this work ends if it is cut short."""
        return self.command or f"draindown run {self.spec.pipeline}/{self.flow}"

    @property
    def layout(self) -> FlowHome:
        """The paths of the flow's tables and files: the live ones, or those of the generation that
        is being rebuilt.
        """
        return self.spec.layout(self.flow).beside(self.staged)

    def following(self, step: Step) -> Request:
        """Return the request of a step that this one's driver does next, as a start of its own."""
        return self.model_copy(
            update={"step": step, "start": new_start(self.start), "then": (), "after": self.start}
        )

    def encode(self) -> str:
        """Return the request as one URL-safe argument. Raises TerminalError `request-too-large`
        above 100 KiB.
        """
        packed = base64.urlsafe_b64encode(
            zlib.compress(self.model_dump_json().encode(), 9)
        ).decode()
        if len(packed) > MAX_BYTES:
            raise TerminalError(
                "request-too-large",
                tried=f"hand pipeline {self.spec.pipeline}, flow {self.flow} to its job in one argument",
                found=f"{len(packed)} bytes after compression; at most {MAX_BYTES} fit",
                next="split the flow, or shorten its expectations suite",
            )
        return packed

    @classmethod
    def decode(cls, argument: str) -> Request:
        """The inverse of `encode`. Raises TerminalError `bad-request` on anything `encode` did not
        make.

        Raises TerminalError `format-unknown` on what another version of draindown made, whatever
        else is in it.
        """
        try:
            raw = base64.b64decode(argument.encode(), altchars=b"-_", validate=True)
            unzip = zlib.decompressobj()
            text = unzip.decompress(raw, _MAX_DECODED)
            content = json.loads(text)
            refuse_unknown(
                "the job's --request argument", content[FIELD], otherwise="draindown run PIPELINE"
            )
            return cls.model_validate(content)
        except (
            ValueError,
            TypeError,
            LookupError,
            zlib.error,
            ValidationError,
            RecursionError,
        ) as error:
            raise TerminalError(
                "bad-request",
                tried="read the job's --request argument",
                found=_unknown_fields(error) or f"{type(error).__name__}: {str(error)[:300]}",
                next="draindown run PIPELINE",
            ) from error


def _unknown_fields(error: Exception) -> str:
    """Return the unknown fields of a request, each with the closest known one; empty if the error
    is another.
    """
    found = error.errors(include_url=False) if isinstance(error, ValidationError) else []
    names = [
        str(one["loc"][0])
        for one in found
        if one["type"] == "extra_forbidden" and len(one["loc"]) == 1
    ]
    return "; ".join(
        f"a request has no field {name!r}{near(name, Request.model_fields)}" for name in names
    )
