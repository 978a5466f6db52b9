"""One action of the evening: what it does to Airflow and to a pipeline, and the truths that are
looked at after it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.e2e.evening import truths
from tests.e2e.evening.facts import Facts, facts
from tests.e2e.evening.orders import Orders
from tests.e2e.evening.shift import Said, Shift
from tests.e2e.evening.truths import Tally


@dataclass
class Scene:
    """The pipeline that an action is about, at rest when it begins; `tally` takes what it looks at
    itself.
    """

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
        self.tally.hold(
            "exit", f"state of {len(runs)} runs", self.shift.over(*runs), [state] * len(runs)
        )

    @contextmanager
    def held(self, files: int = 2, **conf: Any) -> Iterator[tuple[str, int]]:
        """Trigger a run of new files that has a batch behind it and is held in the next; its id,
        its driver's Python.

        The block may release it; at its end it goes on, if it lives.
        """
        self.orders.bring(files)
        with self.orders.brake(after=1):
            run_id = self.shift.press(self.orders, **conf)
            yield run_id, self.orders.await_held()

    @contextmanager
    def typed_and_held(self, files: int = 2) -> Iterator[tuple[subprocess.Popen[str], int]]:
        """The same of `draindown run`, which dies with the block: its process, its driver's
        Python.
        """
        self.orders.bring(files)
        with self.orders.brake(after=1), self.shift.typing("run", self.name, "--json") as command:
            yield command, self.orders.await_held()

    def does(self, *words: str) -> Any:
        """Type a command that must do what it is told; its JSON document."""
        said = self.shift.draindown(*words, "--json")
        self.tally.hold(
            "exit", f"`{' '.join(words[:2])}` does it", (said.code, said.code and said.err), (0, 0)
        )
        return said.document

    def report(self, *words: str) -> str:
        """What `draindown report` prints, in one line."""
        return " ".join(self.shift.draindown("report", self.name, *words).out.split())

    def health(self) -> dict[str, Any]:
        """What doctor says. `symptoms`: of each, by code, what was found and what to type."""
        health = dict((self.shift.draindown("doctor", self.name, "--json").document or [{}])[0])
        return health | {"symptoms": {one["code"]: one for one in health.get("symptoms", [])}}

    def schedule(self, lead: float = 0) -> tuple[datetime, Callable[[], str | None]]:
        """Give the pipeline a date a year, the next minute that is `lead` seconds ahead; that date,
        and its run.
        """
        date = (datetime.now(UTC) + timedelta(seconds=lead + 59)).replace(second=0, microsecond=0)
        self.orders.write_yaml(schedule=f"{date.minute} {date.hour} {date.day} {date.month} *")
        return date, lambda: self.run_of(date)

    def run_of(self, date: datetime) -> str | None:
        """The id of the run that a schedule or a backfill makes of the interval that ends at a
        date; None before.
        """
        where = f"dag_id = '{self.name}' and logical_date is not null and run_after like '{date:%Y-%m-%d %H:%M}%'"
        found = self.shift.ask(f"select run_id from dag_run where {where}")
        return str(found[0][0]) if found else None

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
    """A named thing that people do, or that happens to them. `play` returns the runs whose story is
    looked at.

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
