"""Results of an examination: symptoms, and the health of a flow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal

from draindown.base.clock import now
from draindown.base.exits import Exit
from draindown.base.formatting import columns, count, printable
from draindown.flow import integrity
from draindown.flow.checkpoint import Checkpoint
from draindown.flow.health import Health
from draindown.flow.state import FlowState
from draindown.lake.home import FlowHome
from draindown.ledger import table as ledger_table
from draindown.ledger.table import Sums
from draindown.sources.port import Source

Level = Literal["wrong", "note"]
"""`wrong`: someone must act. `note`: worth knowing; the next run works without action."""


@dataclass(frozen=True)
class Symptom:
    """An inconsistency or a note. `code` is stable. `next` is the command to run."""

    code: str
    level: Level
    part: str
    found: str
    next: str


@dataclass(frozen=True)
class Examination:
    """Result of an examination: a description of each part, the symptoms, and the parts that could
    not be examined.
    """

    name: str
    looked: dict[str, str] = field(default_factory=dict)
    symptoms: list[Symptom] = field(default_factory=list)
    unlooked: list[str] = field(default_factory=list)

    @property
    def exit(self) -> int:
        """Exit code: 0 if healthy, 1 if something is wrong, 75 if a part could not be examined."""
        if any(symptom.level == "wrong" for symptom in self.symptoms):
            return Exit.FINDINGS
        return Exit.TRY_AGAIN if self.unlooked else Exit.DONE

    def as_dict(self) -> dict[str, Any]:
        """Return the result as a JSON-ready dict."""
        return {"healthy": self.exit == Exit.DONE, **asdict(self)}

    @property
    def brief(self) -> str:
        """The verdict and the symptoms as text, without the parts that agree."""
        return "\n".join([f"{self.name}  {self._verdict}", *self._symptom_lines()])

    def __str__(self) -> str:
        parts = (
            f"  {line}"
            for line in columns([(part, printable(text)) for part, text in self.looked.items()])
        )
        return "\n".join([f"{self.name}  {self._verdict}", *parts, *self._symptom_lines()])

    def _of(self, level: Level) -> list[Symptom]:
        return [symptom for symptom in self.symptoms if symptom.level == level]

    @property
    def _verdict(self) -> str:
        wrong, notes = self._of("wrong"), self._of("note")
        verdict = (
            f"{count(len(wrong), 'thing')} wrong"
            if wrong
            else "could not look"
            if self.unlooked
            else "healthy"
        )
        return verdict + (
            f", {count(len(notes), 'note')}" if notes and not wrong and not self.unlooked else ""
        )

    def _symptom_lines(self) -> Iterator[str]:
        yield from (f"  not looked at  {printable(reason)}" for reason in self.unlooked)
        for mark, symptoms in (("WRONG", self._of("wrong")), ("note", self._of("note"))):
            for one in symptoms:
                yield f"  {mark}  {one.code}: {printable(one.found)}"
                yield f"  {' ' * len(mark)}  next: {printable(one.next)}"


@dataclass
class Desk:
    """Collects the results of an examination in progress.

    `memory`: the table beside the target that its kind writes, or empty.
    """

    layout: FlowHome
    _source: Source | None = None
    memory: str = ""
    looked: dict[str, str] = field(default_factory=dict)
    symptoms: list[Symptom] = field(default_factory=list)
    unlooked: list[str] = field(default_factory=list)
    generation: int = 1
    at_work: bool = False

    @property
    def source(self) -> Source:
        """The flow's source. A desk without a flow has none."""
        assert self._source is not None, "only a flow has a source"
        return self._source

    @cached_property
    def recorded(self) -> Sums:
        """Sums of the ledger over all generations."""
        return ledger_table.sums(self.layout)

    @cached_property
    def health(self) -> Health:
        """The flow's facts, which the parts examine."""
        return Health(self.layout, now())

    @property
    def checkpoint(self) -> Checkpoint:
        """Checkpoint of the live generation as of the start of the examination."""
        if isinstance(self.layout, FlowState) and self.layout.live_generation == self.generation:
            return self.layout.live_checkpoint
        return Checkpoint(self.layout.checkpoint(self.generation))

    def say(self, part: str, text: str) -> None:
        """Set the description of a part."""
        self.looked[part] = text

    def wrong(self, code: str, part: str, found: str, next: str) -> None:
        """Add a symptom that someone must act on."""
        self.symptoms.append(Symptom(code, "wrong", part, found, next))

    def note(self, code: str, part: str, found: str, next: str) -> None:
        """Add a symptom that is worth knowing and needs no action."""
        self.symptoms.append(Symptom(code, "note", part, found, next))

    @property
    def compare(self) -> str:
        """The command that compares a derived table with its query, and writes what differs."""
        return self.command("reset", " --yes   # compares the whole table")

    def reset_or_restore(self, path: str) -> str:
        """What helps where a table is damaged: a reset puts it aside and reads all input again."""
        return integrity.made_again(self.layout, path) or self.command(
            "reset", f"   # or restore {path} from a copy, as a whole"
        )

    def command(self, verb: str, rest: str = "") -> str:
        """Return a draindown command for this flow."""
        return f"draindown {verb} {self.layout.pipeline}/{self.layout.flow}{rest}"
