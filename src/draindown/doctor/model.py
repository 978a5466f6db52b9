"""What an examination finds: symptoms, and the health of a flow."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal

from draindown.base.exits import Exit
from draindown.base.formatting import columns, count, printable
from draindown.flow.checkpoint import Checkpoint
from draindown.flow.state import FlowState
from draindown.lake.layout import FlowLayout
from draindown.ledger import table as ledger_table
from draindown.ledger.table import Sums

Level = Literal["wrong", "note"]
"""`wrong`: someone must act; `note`: worth knowing, and the next run is right all the same."""


@dataclass(frozen=True)
class Symptom:
    """One thing that doesn't agree, or is worth knowing. `code` is stable; `next` is the command."""

    code: str
    level: Level
    part: str
    found: str
    next: str


@dataclass(frozen=True)
class Health:
    """What was looked at, in words per part; what was found; what could not be looked at."""

    name: str
    looked: dict[str, str] = field(default_factory=dict)
    symptoms: list[Symptom] = field(default_factory=list)
    unlooked: list[str] = field(default_factory=list)

    @property
    def exit(self) -> int:
        """0 healthy, 1 not, 2 could not look."""
        if any(symptom.level == "wrong" for symptom in self.symptoms):
            return Exit.FINDINGS
        return Exit.USAGE if self.unlooked else Exit.DONE

    def as_dict(self) -> dict[str, Any]:
        """The page for machines."""
        return {"healthy": self.exit == Exit.DONE, **asdict(self)}

    def __str__(self) -> str:
        wrong = [symptom for symptom in self.symptoms if symptom.level == "wrong"]
        notes = [symptom for symptom in self.symptoms if symptom.level == "note"]
        verdict = f"{count(len(wrong), 'thing')} wrong" if wrong else "could not look" if self.unlooked else "healthy"
        if notes and not wrong and not self.unlooked:
            verdict += f", {count(len(notes), 'note')}"
        lines = [f"{self.name}  {verdict}"]
        lines += [f"  {line}" for line in columns([(part, printable(text)) for part, text in self.looked.items()])]
        lines += [f"  not looked at  {printable(reason)}" for reason in self.unlooked]
        for mark, symptoms in (("WRONG", wrong), ("note", notes)):
            for one in symptoms:
                lines += [
                    f"  {mark}  {one.code}: {printable(one.found)}",
                    f"  {' ' * len(mark)}  next: {printable(one.next)}",
                ]
        return "\n".join(lines)


@dataclass
class Desk:
    """One examination on its way."""

    layout: FlowLayout
    looked: dict[str, str] = field(default_factory=dict)
    symptoms: list[Symptom] = field(default_factory=list)
    unlooked: list[str] = field(default_factory=list)
    generation: int = 1
    at_work: bool = False

    @cached_property
    def recorded(self) -> Sums:
        """What the ledger counts of all generations."""
        return ledger_table.sums(self.layout)

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint of the live generation as it stood when the examination began."""
        if isinstance(self.layout, FlowState) and self.layout.live_generation == self.generation:
            return self.layout.live_checkpoint
        return Checkpoint(self.layout.checkpoint(self.generation))

    def say(self, part: str, text: str) -> None:
        """What a part is like."""
        self.looked[part] = text

    def wrong(self, code: str, part: str, found: str, next: str) -> None:
        """Something that someone must act on."""
        self.symptoms.append(Symptom(code, "wrong", part, found, next))

    def note(self, code: str, part: str, found: str, next: str) -> None:
        """Something worth knowing."""
        self.symptoms.append(Symptom(code, "note", part, found, next))

    def command(self, verb: str, rest: str = "") -> str:
        """A draindown command about this flow."""
        return f"draindown {verb} {self.layout.pipeline} --flow {self.layout.flow}{rest}"
