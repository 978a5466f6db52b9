"""The home of a flow in a lake: its Delta tables as objects, and where everything else is. The only
module that builds paths.

tables/<table>  tombstones/<table>  hidden_events/<table>  ledger/<flow>  inputs/<flow>   for every reader of the lake
quarantine/<flow>  late/<flow>  raw/<flow>  unsendable/<flow>      raw: for the owner, who may share it
_draindown/<pipeline>/<flow>/                       draindown's own state
_draindown/lake.json                                which lake it is
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

from draindown.lake import directories
from draindown.lake.documents import Document
from draindown.lake.fenced import FencedDocument
from draindown.lake.start_files import StartFiles
from draindown.lake.stores import store_of
from draindown.lake.transactions import WriterId

if TYPE_CHECKING:
    from draindown.lake.table import Table

T = TypeVar("T")
_LONGEST = 250
"""Maximum characters of a path segment. File systems allow 255 bytes; Airflow's run ids have at
most 250 characters.
"""


@dataclass(frozen=True)
class FlowHome:
    """The home of one flow. Paths are strings under `lake`, without a trailing slash.

    `staged`: the generation of a rebuild, whose tables are beside the live ones until the swap;
    0 for the live tables. Inputs, decisions, lease, and what the source keeps are shared by both.
    `own_intakes`: whether each generation has an intake of its own. Otherwise all generations share
    one. `has_sinks`: whether batches go to sinks too, so that there may be a table of rows that no
    sink could hold. `epoch`: the epoch of the lease under which it is written; 0: none.

    A home opens a table or a document anew each time. Its `view` opens each once: functions that
    get the same view see the same version of each. What is written through a view is not read
    again through it, documents apart.
    """

    lake: str
    pipeline: str
    flow: str
    table_name: str
    staged: int = 0
    own_intakes: bool = False
    has_sinks: bool = False
    epoch: int = field(default=0, compare=False)
    _opened: dict[str, Any] | None = field(default=None, compare=False, repr=False)

    def held(self, epoch: int) -> Self:
        """Return the home as the holder of this epoch of the lease writes it."""
        return replace(self, epoch=epoch)

    def view(self) -> Self:
        """Return the home with a memory of what it opened; a view is returned unchanged."""
        return self if self._opened is not None else replace(self, _opened={})

    def once(self, key: str, read: Callable[[], T]) -> T:
        """Return what `read` returns for `key`: in a view, the first result. Errors are not kept."""
        if self._opened is None:
            return read()
        if key not in self._opened:
            self._opened[key] = read()
        found: T = self._opened[key]
        return found

    @property
    def exists(self) -> bool:
        """Whether the flow has state in the lake."""
        return directories.exists(self.home)

    def make(self) -> None:
        """Create the directory of the flow's state. No-op if it exists.

        Group and others have no access, whatever the umask. Checkpoint, reports and gate results
        contain data of records, and a writer of the directory controls what the flow reads.
        """
        directories.make(state_of(self.lake))
        directories.make(f"{state_of(self.lake)}/{self.pipeline}")
        directories.make(self.home, private=True)

    def app_id(self, generation: int, purpose: str, kind: str = "drain") -> WriterId:
        """Return the id of a generation's writes of one kind and purpose (`rows`, `tombstones`,
        `quarantine`).
        """
        return WriterId(f"draindown:{self.pipeline}:{self.flow}:{generation}:{kind}:{purpose}")

    @property
    def tables(self) -> Tables:
        """The Delta tables."""
        return Tables(self)

    def document(self, path: str) -> Document:
        """Return the document at a path."""
        return Document(path, self._opened)

    def names(self, directory: str, ending: str = ".json") -> list[str]:
        """Return the names of what a directory of documents holds, without their ending."""
        keys = (entry.key for entry in store_of(directory).list(f"{directory}/"))
        found = (key.removeprefix(f"{directory}/") for key in keys if key.endswith(ending))
        return [name.removesuffix(ending) for name in found if "/" not in name]

    def beside(self, generation: int) -> FlowHome:
        """Return the home of the staged tables of a rebuild of `generation`."""
        return replace(self, staged=generation)

    @property
    def live(self) -> FlowHome:
        """The home of the live tables."""
        return replace(self, staged=0)

    @property
    def root(self) -> str:
        """Root directory of the lake."""
        return self.lake.rstrip("/")

    def _of(self, name: str, live: str) -> str:
        return f"{self.staging}/{name}" if self.staged else live

    @property
    def staging(self) -> str:
        """Directory of the staged tables and files of a rebuild."""
        return f"{self.of_generation(self.staged)}/rebuilt"

    @property
    def home(self) -> str:
        """Root directory of draindown's own state of this flow."""
        return f"{state_of(self.lake)}/{self.pipeline}/{self.flow}"

    @property
    def sinks(self) -> str:
        """Directory with what was sent: one JSON file per sink, and the directory of epochs."""
        return f"{self.home}/sinks"

    @property
    def sinks_name(self) -> Document:
        """The name by which the sinks know the lake."""
        return self.document(f"{self.sinks}/lake")

    def sink(self, name: str) -> Document:
        """Return the JSON file with the newest batches that were sent to a sink."""
        return self.document(f"{self.sinks}/{name}.json")

    @property
    def accepted_losses(self) -> Document:
        """JSON file with the ranges of input that a person gave up as lost."""
        return self.document(f"{self.home}/accepted.json")

    @property
    def moved(self) -> Document:
        """JSON file with a person's answers about landing directories that moved."""
        return self.document(f"{self.home}/moved.json")

    @property
    def bounds(self) -> Document:
        """JSON file with the ranges of input that a copy of the flow is confined to."""
        return self.document(f"{self.home}/bounds.json")

    @property
    def replaying(self) -> Document:
        """JSON file of the quarantined rows that the newest replay releases when its batch is
        committed.
        """
        return self.document(self._of("replaying.json", f"{self.home}/replaying.json"))

    def replay(self, identity: str) -> Document:
        """Return the document of a replay of files or of a time range: its batches, pinned."""
        return self.document(f"{self.replays}/{identity}.json")

    @property
    def replays(self) -> str:
        """Directory with one JSON file per replay of files or of a time range: its batches,
        pinned.
        """
        return f"{self.home}/replays"

    def checkpoint(self, generation: int) -> str:
        """Return the directory of Spark's checkpoint of one generation."""
        return f"{self.of_generation(generation)}/checkpoint"

    def of_generation(self, generation: int) -> str:
        """Return the directory of one generation: its checkpoint, its intake, its rebuild."""
        return f"{self.generations}/{generation:04d}"

    @property
    def generations(self) -> str:
        """Directory with one directory per generation."""
        return f"{self.home}/generations"

    def forgotten(self, generation: int) -> str:
        """Directory of a checkpoint and an intake that are void, while their files are removed;
        else absent.
        """
        return f"{self.of_generation(generation)}/forgotten"

    @property
    def all_aside(self) -> str:
        """Directory with one directory per generation whose reset moved tables aside."""
        return f"{self.home}/aside"

    def aside(self, generation: int) -> str:
        """Directory of damaged tables that a reset to this generation moved aside."""
        return f"{self.all_aside}/{generation:04d}"

    @property
    def generation(self) -> FencedDocument:
        """The document that names the live generation."""
        return self._fenced(self._of("generation", f"{self.home}/generation"))

    @property
    def rebuild(self) -> FencedDocument:
        """The document with the generation of the rebuild in progress; empty if there is none."""
        return self._fenced(f"{self.home}/rebuild")

    def _fenced(self, home: str) -> FencedDocument:
        return FencedDocument(home, self.pipeline, self.epoch, self._opened)

    @property
    def published(self) -> str:
        """Directory of the revisions of the document with the published version."""
        return f"{self.home}/published"

    @property
    def waivers(self) -> str:
        """Directory of the revisions of the document with the waivers, by expectation."""
        return f"{self.home}/waivers"

    @property
    def foreign(self) -> str:
        """Directory of the revisions of the document with accepted foreign commits, and of the rows
        they changed.
        """
        return f"{self.home}/foreign"

    @property
    def proven(self) -> Document:
        """JSON file with what the newest proof of the table found."""
        return self.document(f"{self.home}/proven.json")

    def reader(self, pipeline: str, flow: str, *, staged: bool) -> Document:
        """Return the document of a flow that reads the table, or of the rebuild of such a flow."""
        return self.document(f"{self.readers}/{pipeline}.{flow}{'.rebuild' if staged else ''}.json")

    @property
    def readers(self) -> str:
        """Directory with one JSON file per flow that reads the table: what of it the reader still
        needs.
        """
        return f"{self.home}/readers"

    @property
    def vacuumed(self) -> Document:
        """JSON file with the time of each table's last VACUUM."""
        return self.document(f"{self.home}/vacuumed.json")

    @property
    def loads(self) -> Document:
        """JSON file with the measured load of recent batches, which determines the size of the next
        ones.
        """
        return self.document(f"{self.home}/loads.json")

    @property
    def drift(self) -> Document:
        """JSON file of drift: fields and columns that differ from the contract, each with its first
        file.
        """
        return self.document(f"{self.home}/drift.json")

    @property
    def spool(self) -> str:
        """Directory of copies of input files that a batch reads instead of the originals; absent
        between batches.
        """
        return f"{self.home}/spool"

    def probe(self, start: str) -> str:
        """Directory in which the executors of a cluster show that they see the lake; absent after a
        step has begun.
        """
        return f"{self.home}/probe-{start}"

    @property
    def lease(self) -> str:
        """Directory of the lease's lock files and epochs."""
        return f"{self.home}/lease"

    @property
    def owner(self) -> Document:
        """Who holds the lease in the local form, or held it last. A view reads it anew each time, as
        whether the lock is held is asked anew.
        """
        return Document(f"{self.lease}/owner.json")

    @property
    def unfenced(self) -> Document:
        """The tables that the newest fence of the lease could not fence; read as `owner` is."""
        return Document(f"{self.lease}/unfenced.json")

    @property
    def claims(self) -> str:
        """Directory of the claims of flows without a batch; no pipeline has its name."""
        return f"{state_of(self.lake)}/_claims"

    @property
    def table_claims(self) -> str:
        """Directory of the revisions of the claim on the live target."""
        return f"{self.claims}/table.{self.table_name}"

    @property
    def ledger_claims(self) -> str:
        """Directory of the revisions of the claim on the live ledger, and on all tables that are
        named by the flow.
        """
        return f"{self.claims}/flow.{self.flow}"

    @property
    def reports(self) -> str:
        """Directory with one directory of reports per run."""
        return f"{self.home}/reports"

    @property
    def newest_start(self) -> Document:
        """The id of the newest start of a step."""
        return self.document(f"{self.home}/newest-start.json")

    def run_reports(self, run_id: str) -> str:
        """Return the directory of a run's reports."""
        return f"{self.reports}/{safe_name(run_id)}"

    def start(self, run_id: str, step: str, start: str = "") -> StartFiles:
        """Return what one start of a step (plan, drain, check, compact) of a run leaves."""
        name = f"{step}@{safe_name(start)}" if start else step
        return StartFiles(f"{self.run_reports(run_id)}/{name}", self._opened)

    @property
    def all_validations(self) -> str:
        """Directory with one directory of gate results per run."""
        return f"{self.home}/validations"

    def validations(self, run_id: str, start: str) -> str:
        """Return the directory of the gate results of one start of a run's check: `result.json` and
        `index.html`.
        """
        return f"{self.all_validations}/{safe_name(run_id)}/{safe_name(start)}"


@dataclass(frozen=True)
class Tables:
    """The Delta tables of one flow. Each is absent until something is written to it."""

    home: FlowHome

    @property
    def target(self) -> Table:
        """The target."""
        return self._of("table", table_unit(self.home.table_name))

    @property
    def tombstones(self) -> Table:
        """Deleted keys."""
        return self._of("tombstones", f"tombstones/{self.home.table_name}")

    @property
    def hidden(self) -> Table:
        """Events that no row of a history holds whole."""
        return self._of("hidden_events", f"hidden_events/{self.home.table_name}")

    @property
    def snapshots(self) -> Table:
        """The states of a processor's fold."""
        return self._of("state", f"state/{self.home.flow}")

    def memory(self, name: str) -> Table:
        """Return the table beside the target by the name that its kind has: `tombstones`, `hidden`
        or `snapshots`.
        """
        if name == "tombstones":
            return self.tombstones
        if name == "hidden":
            return self.hidden
        if name == "snapshots":
            return self.snapshots
        raise ValueError(f"no kind keeps {name} beside its table")

    @property
    def quarantine(self) -> Table:
        """Refused and withdrawn rows."""
        return self._of("quarantine", f"quarantine/{self.home.flow}")

    @property
    def late(self) -> Table:
        """Rows that came later than the flow accepts."""
        return self._live(f"late/{self.home.flow}")

    @property
    def unsendable(self) -> Table:
        """Rows that a sink can't hold."""
        return self._live(f"unsendable/{self.home.flow}")

    @property
    def late_decisions(self) -> Table:
        """People's decisions about late rows."""
        return self.at(f"{self.home.home}/late")

    @property
    def ledger(self) -> Table:
        """One row per batch."""
        return self._of("ledger", f"ledger/{self.home.flow}")

    @property
    def inputs(self) -> Table:
        """One row per unit that a batch read: the ledger's child table."""
        return self._live(f"inputs/{self.home.flow}")

    @property
    def raw(self) -> Table:
        """Raw records that batches read; absent if the flow keeps none."""
        return self._live(f"raw/{self.home.flow}")

    def intake(self, generation: int) -> Table:
        """Return the pinned input that a generation reads; one commit is one slice."""
        own = f"generations/{generation:04d}/" if self.home.own_intakes else ""
        return self.at(f"{self.home.home}/{own}intake")

    @property
    def parked(self) -> Table:
        """Events about files that can't be read."""
        return self.at(f"{self.home.home}/parked")

    @property
    def resolutions(self) -> Table:
        """People's decisions about quarantined rows."""
        return self.at(f"{self.home.home}/resolutions")

    def other(self, name: str) -> Table:
        """Return the live target of that name, whichever flow of the lake writes it."""
        return self._live(table_unit(name))

    def at(self, path: str) -> Table:
        """Return the table at a path."""
        # here, as it imports deltalake, which parsing a DAG does without
        from draindown.lake.table import Table

        return self.home.once(path, lambda: Table(path))

    def _live(self, place: str) -> Table:
        return self.at(f"{self.home.root}/{place}")

    def _of(self, name: str, live: str) -> Table:
        """Return a table that a rebuild has beside the live one."""
        return self.at(f"{self.home.staging}/{name}") if self.home.staged else self._live(live)


def state_of(lake: str) -> str:
    """Return the directory of draindown's own state of all flows of a lake."""
    return f"{lake.rstrip('/')}/_draindown"


def identity_of(lake: str) -> Document:
    """Return the JSON file that tells a lake from any other at the same path."""
    return Document(f"{state_of(lake)}/lake.json")


def table_unit(name: str) -> str:
    """Return how slices name a live table: by its path within the lake, so that a copied lake names
    its own.
    """
    return f"tables/{name}"


def table_of_unit(unit: str) -> str:
    """The inverse of `table_unit`. Slices once had the absolute path, which ends alike."""
    return unit.rpartition("/")[2]


def safe_name(text: str) -> str:
    """Return a run id as one path segment: characters other than ASCII letters, digits and `._+=-`
    become `_`.

    A changed name ends with a hash of the id, so that different ids get different names.
    Idempotent.
    """
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._+=-") else "_" for c in text)[
        :_LONGEST
    ]
    if kept == text and kept.strip("."):
        return kept
    return f"{kept[: _LONGEST - 9]}-{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:8]}"
