"""One action of the evening: what it does to Airflow and to a pipeline, and the truths that are looked at after it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.e2e.evening import truths
from tests.e2e.evening.facts import Facts, facts
from tests.e2e.evening.orders import Orders
from tests.e2e.evening.shift import Said, Shift
from tests.e2e.evening.truths import Tally


@dataclass
class Scene:
    """The pipeline that an action is about, at rest when it begins; `tally` takes what it looks at itself."""

    shift: Shift
    orders: Orders
    tally: Tally = field(default_factory=Tally)

    def warm(self) -> None:
        """Have the pipeline's first batch behind it, and nothing under way."""
        self.shift.settled()
        if not facts(self.orders).ledger:
            self.orders.bring()
            assert self.green(), self.shift.logs()

    def green(self, **conf: Any) -> str:
        """Trigger a run and wait for its good end; its id."""
        run_id = self.shift.press(self.orders, **conf)
        self.ends(run_id)
        return run_id

    def ends(self, *runs: str, state: str = "success") -> None:
        """Wait until runs are over; they must end so."""
        self.tally.hold("exit", f"state of {len(runs)} runs", self.shift.over(*runs), [state] * len(runs))

    def type(self, *words: str, code: int = 0) -> dict[str, Any]:
        """Type `draindown VERB PIPELINE ...`; what it says must be so. Its JSON document."""
        said = self.shift.draindown(words[0], *words[1:], "--json")
        return self.was_told(said, code)

    def was_told(self, said: Said, code: int = 0) -> dict[str, Any]:
        """Hold what a command said against the ledger; its JSON document."""
        return truths.of_command(self.tally, self.now(), said, code)

    def now(self) -> Facts:
        """The pipeline as it stands."""
        return facts(self.orders)

    @property
    def name(self) -> str:
        """The pipeline's name."""
        return self.orders.spec.pipeline

    def holds(self, surface: str, what: str, found: object, expected: object = True) -> None:
        """Note a truth of this action alone."""
        self.tally.hold(surface, what, found, expected)


Play = Callable[[Scene], Iterable[str] | None]


@dataclass(frozen=True)
class Action:
    """A named thing that people do, or that happens to them. `play` returns the runs whose story is looked at.

    `short`: it is among the few of `make test`.
    """

    name: str
    pipeline: str
    play: Play
    short: bool = False


ACTIONS: dict[str, Action] = {}
"""Every action by name, in the order of the evening."""


def action(name: str, pipeline: str = "orders", *, short: bool = False) -> Callable[[Play], Play]:
    """Enter a function into the evening, under a name that says what is done."""

    def enter(play: Play) -> Play:
        assert name not in ACTIONS, name
        ACTIONS[name] = Action(name, pipeline, play, short)
        return play

    return enter


def perform(one: Action, shift: Shift, orders: Orders) -> Tally:
    """Do one action, wait until nothing moves, and look at everything that anybody is told."""
    scene = Scene(shift, orders)
    scene.warm()
    runs = list(one.play(scene) or [])
    shift.settled()
    so = truths.standing(scene.tally, shift, orders)
    for run_id in runs:
        truths.of_run(scene.tally, shift, orders, so, run_id)
    return scene.tally
