"""Base class and helpers of the models of a pipeline file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from pydantic import (
    BaseModel,
    ConfigDict,
)
from pydantic_core import PydanticCustomError

from draindown.base.digests import Meaning
from draindown.config.names import caseless

Problem = tuple[tuple[str, ...], str]


class Model(BaseModel):
    """An immutable model that refuses unknown keys and values of other types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Part(Model):
    """The part of a derived flow that says how its table follows from its sources."""

    UNTIMED: ClassVar[str] = ""
    """Why no row can be late, of a part whose `timed_by` is None."""

    @property
    def told(self) -> str:
        """What the result depends on besides the text of the part, such as the code that it names;
        empty by default.
        """
        return ""

    def meaning(self) -> Meaning:
        """Return what the part says, in the words of its digest."""
        raise NotImplementedError

    @property
    def lacking(self) -> str:
        """What the part names and this machine lacks, so that `told` is not known; empty by
        default.
        """
        return ""

    def placed(self, root: Path) -> None:
        """Take the project's directory, in which what the part names is looked for. No-op by
        default.
        """

    @property
    def margin(self) -> int:
        """Seconds by which the rows of a touched scope reach beyond the time of a changed row; 0 by
        default.
        """
        return 0

    def timed_by(self, table: str) -> str | None:  # noqa: ARG002
        """Return the column of a source table with the time by which its rows are late; None if no
        row can be.
        """
        return None


def repeated(names: list[str]) -> list[str]:
    """Return the names that occur more than once, compared without case."""
    counts: dict[str, list[str]] = defaultdict(list)
    for name in names:
        counts[caseless(name)].append(name)
    return [same[-1] for same in counts.values() if len(same) > 1]


def refuse(problems: list[Problem]) -> None:
    """Raise a validation error that lists every problem with its path. Do nothing if there is no
    problem.
    """
    if problems:
        text = "; ".join(f"{'.'.join(path)}: {message}" for path, message in problems)
        raise PydanticCustomError("combination", "{text}", {"text": text, "problems": problems})


def assigned(measures: Mapping[str, str]) -> str:
    """Return SQL expressions by name as one line: `n = count(*), total = sum(amount)`."""
    return ", ".join(f"{name} = {' '.join(text.split())}" for name, text in measures.items())
