"""What the models of a pipeline file share."""

from __future__ import annotations

from collections import defaultdict

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError

Problem = tuple[tuple[str, ...], str]


class Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def repeated(names: list[str]) -> list[str]:
    counts: dict[str, list[str]] = defaultdict(list)
    for name in names:
        counts[name.lower()].append(name)
    return [same[-1] for same in counts.values() if len(same) > 1]


def refuse(problems: list[Problem]) -> None:
    if problems:
        text = "; ".join(f"{'.'.join(path)}: {message}" for path, message in problems)
        raise PydanticCustomError("combination", "{text}", {"text": text, "problems": problems})
