"""A person's answers about units that are under another name now: files of a landing directory that
moved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from draindown.lake.home import FlowHome
from draindown.sources import objects


@dataclass(frozen=True)
class Answer:
    """A person's answer: files in `now` are those of `before`, or new deliveries if `before` is
    empty.
    """

    before: str
    now: str
    at: str
    by: str
    note: str = ""


@dataclass(frozen=True)
class Moves:
    """The answers about a flow, oldest first."""

    answers: Sequence[Answer] = ()

    @classmethod
    def of(cls, layout: FlowHome) -> Moves:
        """Return the answers. Raises TerminalError `state-damaged`."""
        without = "then files of directories that moved are new, until somebody answers again"
        return layout.moved.parsed(_parsed, without=without) or cls()

    def place(self, path: str) -> str:
        """Return where a known file is now: at its recorded path, or where its directory moved
        to.
        """
        if not self.answers or objects.is_there(path):
            return path
        places = _followed(
            path, [(answer.before, answer.now) for answer in self.answers if answer.before]
        )
        return next((one for one in reversed(places) if objects.is_there(one)), places[-1])

    def names(self, path: str) -> list[str]:
        """Return the other paths by which a listed file may be known."""
        answers = reversed(self.answers)
        return _followed(
            path, [(answer.now, answer.before) for answer in answers if answer.before]
        )[1:]

    def are_new(self, directory: str) -> bool:
        """Return whether a person answered that new files in a directory are deliveries."""
        return any(answer.now == directory and not answer.before for answer in self.answers)


def _followed(path: str, moves: Sequence[tuple[str, str]]) -> list[str]:
    """Return a path, and the paths that it has after moves from one directory to another, in
    turn.
    """
    paths = [path]
    for before, now in moves:
        paths += [now + one.removeprefix(before) for one in paths if one.startswith(f"{before}/")]
    return paths


def _parsed(content: Mapping[str, Any]) -> Moves:
    return Moves([Answer(**one) for one in content["answers"]])


def record(layout: FlowHome, answer: Answer) -> None:
    """Add an answer to those of a flow. Call it under the lease."""
    layout.moved.write(
        {"answers": [asdict(known) for known in (*Moves.of(layout.live).answers, answer)]},
    )
