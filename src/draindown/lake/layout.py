"""Where everything lives under a lake: the only place that builds a path.

tables/<table>  tombstones/<table>  ledger/<flow>   for everyone who queries
quarantine/<flow>                                       refused rows, raw: for the owner, who may share it
_draindown/<pipeline>/<flow>/                                              for draindown itself
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

_LONGEST = 250
"""Characters of a path segment; file systems take 255, Airflow's run ids have 250 at most."""


@dataclass(frozen=True)
class FlowLayout:
    """Paths of one flow. All are strings under `lake`, without a trailing slash.

    `staged`: the generation that is being rebuilt, whose tables lie beside the live ones until they replace them; 0
    means the live ones. Intake, parked files, decisions and lease are the same for both.
    """

    lake: str
    pipeline: str
    flow: str
    table_name: str
    staged: int = 0

    def beside(self, generation: int) -> FlowLayout:
        """The layout under which a generation is rebuilt beside the live one."""
        return replace(self, staged=generation)

    @property
    def live(self) -> FlowLayout:
        """The layout of the live tables."""
        return replace(self, staged=0)

    def _under(self, *parts: str) -> str:
        return "/".join((self.lake.rstrip("/"), *parts))

    def _of(self, name: str, live: str) -> str:
        return f"{self.staging}/{name}" if self.staged else live

    @property
    def staging(self) -> str:
        """Directory of what a generation that is being rebuilt has of its own."""
        return f"{self.home}/generations/{self.staged:04d}/rebuilt"

    @property
    def home(self) -> str:
        """Root of what draindown keeps for itself about this flow."""
        return self._under("_draindown", self.pipeline, self.flow)

    @property
    def table(self) -> str:
        """The target Delta table."""
        return self._of("table", self._under("tables", self.table_name))

    @property
    def tombstones(self) -> str:
        """Delta table that remembers deleted keys; absent until the first delete."""
        return self._of("tombstones", self._under("tombstones", self.table_name))

    @property
    def quarantine(self) -> str:
        """Delta table of refused rows; absent until the first one."""
        return self._of("quarantine", self._under("quarantine", self.flow))

    @property
    def ledger(self) -> str:
        """Delta table with one row per batch."""
        return self._of("ledger", self._under("ledger", self.flow))

    @property
    def intake(self) -> str:
        """Delta table of input files; one commit is one cut."""
        return f"{self.home}/intake"

    @property
    def parked(self) -> str:
        """Delta table of events about files that can't be read."""
        return f"{self.home}/parked"

    @property
    def resolutions(self) -> str:
        """Delta table of what people decided about quarantined rows."""
        return f"{self.home}/resolutions"

    @property
    def replaying(self) -> str:
        """JSON file: the rows that the newest replay of quarantined rows releases once its commit is there."""
        return self._of("replaying.json", f"{self.home}/replaying.json")

    @property
    def replays(self) -> str:
        """Directory of one JSON file per replay of files or of a range of time: its batches, pinned."""
        return f"{self.home}/replays"

    def checkpoint(self, generation: int) -> str:
        """Spark's checkpoint of one generation."""
        return f"{self.home}/generations/{generation:04d}/checkpoint"

    def aside(self, generation: int) -> str:
        """Directory of damaged tables that a reset to this generation put out of the way."""
        return f"{self.home}/aside/{generation:04d}"

    @property
    def generation(self) -> str:
        """JSON file that names the live generation."""
        return self._of("generation.json", f"{self.home}/generation.json")

    @property
    def rebuild(self) -> str:
        """JSON file that says which generation is being rebuilt; absent while none is."""
        return f"{self.home}/rebuild.json"

    @property
    def published(self) -> str:
        """Directory of the revisions of what names the newest version that passed its gate."""
        return f"{self.home}/published"

    @property
    def waivers(self) -> str:
        """Directory of the revisions of what lists the expectations that a person waived, by name."""
        return f"{self.home}/waivers"

    @property
    def vacuumed(self) -> str:
        """JSON file that remembers when each table's old files were last removed."""
        return f"{self.home}/vacuumed.json"

    @property
    def loads(self) -> str:
        """JSON file of what the newest batches weighed, by which the next ones are sized."""
        return f"{self.home}/loads.json"

    @property
    def drift(self) -> str:
        """JSON file of fields and columns that were not as the contract has them, each with its first file."""
        return f"{self.home}/drift.json"

    @property
    def spool(self) -> str:
        """Directory of the copies of input files that a batch reads in their place; absent between batches."""
        return f"{self.home}/spool"

    @property
    def lease(self) -> str:
        """Directory of the lease's lock files and its owner's card."""
        return f"{self.home}/lease"

    @property
    def reports(self) -> str:
        """Directory with one directory of reports per run."""
        return f"{self.home}/reports"

    def run_reports(self, run_id: str) -> str:
        """Directory of a run's reports."""
        return f"{self.reports}/{safe_name(run_id)}"

    def report(self, run_id: str, step: str, start: str = "") -> str:
        """JSON report of one start of a step (plan, drain, check, compact) of a run."""
        return f"{self.run_reports(run_id)}/{step}{f'@{safe_name(start)}' if start else ''}.json"

    def log(self, run_id: str, step: str) -> str:
        """Driver log of one step of a run: what Spark says, and traces."""
        return f"{self.reports}/{safe_name(run_id)}/{step}.log"

    def at_work(self, run_id: str, step: str) -> str:
        """JSON file that says who works on one step of a run; locked meanwhile, gone when it ended by itself."""
        return f"{self.reports}/{safe_name(run_id)}/{step}.at-work"

    @property
    def all_validations(self) -> str:
        """Directory with one directory of gate results per run."""
        return f"{self.home}/validations"

    def validations(self, run_id: str, start: str) -> str:
        """Directory for the gate results of one start of a run's check: `result.json` and `index.html`."""
        return f"{self.all_validations}/{safe_name(run_id)}/{safe_name(start)}"


def safe_name(text: str) -> str:
    """A run id as one path segment: everything but letters, digits, `.`, `_`, `+`, `=` and `-` becomes `_`.

    What had to change gets a hash of the id at its end, so that two ids stay two. A safe name is its own safe name.
    """
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._+=-") else "_" for c in text)[:_LONGEST]
    if kept == text and kept.strip("."):
        return kept
    return f"{kept[: _LONGEST - 9]}-{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:8]}"
