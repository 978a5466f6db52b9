"""Whether the lake of a pipeline is where it was. A lake is begun on purpose; elsewhere a missing
one is refused.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from draindown.base.errors import TerminalError
from draindown.lake import identity, lake_records
from draindown.lake.directories import absolute
from draindown.lake.home import identity_of
from draindown.lake.identity import Identity
from draindown.lake.lake_records import Record
from draindown.lake.storage import state_of_path

PIN = "DRAINDOWN_LAKE_ID"
"""Environment variable: the ids of the lakes that may be used, separated by commas."""

Found = Literal["nothing", "unmarked", "lake"]
"""What is at the path of a lake: no flow, flows without an identity, or a lake with one."""
Answer = Literal["open", "begin", "absent", "unmarked", "another", "elsewhere", "not pinned"]
"""`open` and `begin` go on; each other one is a reason to refuse."""


@dataclass(frozen=True)
class Lake:
    """A pipeline's lake, as the project and the environment know it.

    Attributes:
        path: absolute; symbolic links are not resolved, which lead elsewhere once a disk is
            mounted.
        records: the lakes that the project's pipelines have used.
        pins: ids that the environment requires; empty if it requires none.
        found, own: what is at the path, and its identity.
    """

    path: str
    root: Path
    pipeline: str
    records: Sequence[Record]
    pins: frozenset[str]
    found: Found
    own: Identity | None

    @classmethod
    def look(
        cls, lake: str, root: Path, pipeline: str, environ: Mapping[str, str] = os.environ
    ) -> Lake:
        """Look at a lake. Raises TerminalError `state-damaged`, `format-unknown`."""
        path, pins = (
            absolute(lake),
            frozenset(filter(None, environ.get(PIN, "").replace(",", " ").split())),
        )
        # the records first: what another run records meanwhile, it has begun before
        records = lake_records.records(root)
        own = identity.read(path)
        unmarked: Found = "unmarked" if identity.has_flows(path) else "nothing"
        return cls(path, root, pipeline, records, pins, "lake" if own else unmarked, own)

    @property
    def known(self) -> str:
        """Id that the project has on record for the path; "" without a record."""
        return next((record.id for record in self.records if record.lake == self.path), "")

    @property
    def used(self) -> tuple[str, ...]:
        """Other paths on record for the pipeline."""
        own = (record.lake for record in self.records if record.pipeline == self.pipeline)
        return tuple(dict.fromkeys(path for path in own if path != self.path))

    @property
    def answer(self) -> Answer:
        """Whether the pipeline may work here."""
        return answer(self.found, self.own.id if self.own else "", self.known, self.used, self.pins)

    def refuse_missing(self) -> None:
        """Raise TerminalError `lake-missing` unless the pipeline may work here."""
        if self.answer not in ("open", "begin"):
            raise self._missing()

    def enter(self, by: str) -> None:
        """Refuse a missing lake, give one without it an identity, and record it. Raises as
        `refuse_missing`.
        """
        self.refuse_missing()
        self._record(self.own or identity.begin(self.path, by))

    def accept(self, by: str) -> Identity:
        """Begin a lake, or accept the one that is there, as a person asked. Return its identity.

        Flows without an identity get the id on record. Raises TerminalError `lake-missing` if the
        environment requires another lake.
        """
        if self.own is None:
            only = next(iter(self.pins)) if len(self.pins) == 1 else ""
            accepted = identity.begin(
                self.path, by, only or (self.known if self.found == "unmarked" else "")
            )
        elif self.pins and self.own.id not in self.pins:
            raise self._missing()
        else:
            accepted = self.own
        for record in self.records:
            # of other pipelines: a path is one lake
            if record.lake == self.path and record.id != accepted.id:
                lake_records.remember(self.root, Record(self.path, accepted.id, record.pipeline))
        self._record(accepted)
        return accepted

    def _record(self, found: Identity) -> None:
        record = Record(self.path, found.id, self.pipeline)
        if record not in self.records:
            lake_records.remember(self.root, record)

    @property
    def state(self) -> str:
        """What is at the path, as text."""
        if self.own is not None:
            return f"{self.path} is lake {self.own.id}, begun {self.own.at} by {self.own.by}"
        if self.found == "unmarked":
            return f"{self.path} has flows, and no {identity_of(self.path)}"
        return state_of_path(self.path)

    def _missing(self) -> TerminalError:
        return TerminalError(
            "lake-missing",
            tried=f"open the lake of pipeline {self.pipeline}",
            found=f"{self.state}; {self._wanted}",
            changed="nothing",
            next=self._ways(),
        )

    @property
    def acceptance(self) -> str:
        """What `allowed_lateness` does, as text."""
        if self.own is not None:
            replaced = f" in place of {self.known}" if self.known not in ("", self.own.id) else ""
            return f"puts it on record{replaced}; the next runs of pipeline {self.pipeline} use it"
        if self.found == "unmarked":
            return "writes the id that is on record" if self.known else "writes a new id"
        return f"begins an empty lake; the next run of pipeline {self.pipeline} reads all input into it"

    @property
    def _wanted(self) -> str:
        if self.answer in ("not pinned", "absent", "unmarked") and self.pins:
            return f"{PIN} requires lake {' or '.join(sorted(self.pins))}"
        if self.answer == "elsewhere":
            return f"the pipeline has used {' and '.join(self.used)}, and begins no other lake by itself"
        return f"this project has used lake {self.known} there"

    def _ways(self) -> Sequence[str]:
        there, accept = shlex.quote(self.path), f"draindown init --lake {self.pipeline} --yes"
        mount = (
            f"findmnt --target {there}   # mount the lake's disk, or correct `lake`, then try again"
        )
        match self.answer:
            case "not pinned":
                assert self.own is not None, "a lake without identity is absent or unmarked"
                return [mount, f"export {PIN}={self.own.id}   # if this is the right lake"]
            case "unmarked":
                file = identity_of(self.path)
                return [
                    mount,
                    f"restore {file} from a copy",
                    f"{accept}   # if it is the lake: writes its id again",
                ]
            case "another":
                return [mount, f"{accept}   # if it is the right lake: puts this one on record"]
            case _:
                return [
                    mount,
                    f"{accept}   # begins an empty lake there, which reads all input again",
                ]


def answer(
    found: Found, own: str, known: str, used: Collection[str], pins: Collection[str]
) -> Answer:
    """Return whether a pipeline may work in what is at the path of its lake. Arguments as the
    attributes of `Lake`.
    """
    if found == "lake":
        if pins:
            return "open" if own in pins else "not pinned"
        return "open" if known in ("", own) else "another"
    if found == "unmarked":  # its identity was removed, or a copy left it out
        return "unmarked" if known or pins else "begin"
    if known or pins:
        return "absent"
    return "elsewhere" if used else "begin"
