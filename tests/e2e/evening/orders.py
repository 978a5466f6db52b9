"""A pipeline of the evening: its files, what they mean by plain Python, and a brake that holds its
driver.
"""

from __future__ import annotations

import gzip
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from draindown.drill.process import alive
from tests.landing import Landing
from tests.model import Change, fold

EXPECTATION = "a_is_small"
LARGE = 9999  # a value of `a` that the gate refuses, and no rule
KEYS = 40

_SUITE = [
    {
        "type": "expect_column_values_to_be_between",
        "kwargs": {"column": "a", "min_value": 0, "max_value": 1000},
        "meta": {"draindown": {"name": EXPECTATION}},
    }
]
_BRAKE = """\
import os
import time
from pathlib import Path


def tidy(df):
    hold, held, log = (Path(at) for at in {places!r})
    while hold.exists() and len(list(log.glob("0*.json"))) >= int(hold.read_text()):
        held.write_text(str(os.getpid()))
        time.sleep(0.05)
    held.unlink(missing_ok=True)
    return df
"""


class Orders(Landing):
    """Flow `f` of a pipeline of the project at `project`: one file a batch, keyed, with deletes, a
    rule and a suite.

    `home` is the project for the first pipeline of all, and a directory of it for every other; no
    two share anything.
    """

    def __init__(self, project: Path, pipeline: str, *, first: bool = False, **flow: Any) -> None:
        home = project if first else project / pipeline
        source = {"files": str(home / "landing" / "*"), "max_files_per_trigger": 1}
        own = {
            "rules": {"sane": "a is null or a >= 0"},
            "expectations": pipeline,
            "transform": f"{pipeline}.tidy",
        }
        super().__init__(home, pipeline=pipeline, source=source, **(own | flow))
        self.project, self.moment = project, 0
        self.lake, self.originals = home / "lake", home / "originals"
        self._hold, self._held = home / "hold", home / "held"
        self.document["owner"] = "on-call"
        (project / "expectations").mkdir(exist_ok=True)
        suite = {"name": pipeline, "expectations": _SUITE, "meta": {}}
        (project / "expectations" / f"{pipeline}.json").write_text(json.dumps(suite))
        transforms = project / "jobs" / "transforms"
        transforms.mkdir(parents=True, exist_ok=True)
        places = [str(self._hold), str(self._held), str(self.lake / "ledger" / "f" / "_delta_log")]
        (transforms / f"{pipeline}.py").write_text(_BRAKE.format(places=places))

    @property
    def yaml(self) -> Path:
        """Its pipeline file."""
        return self.project / "dags" / "pipelines" / f"{self.spec.pipeline}.yaml"

    def write_yaml(self, **changes: Any) -> None:
        """Write its file with these top-level entries changed."""
        self.document |= changes
        self.yaml.parent.mkdir(parents=True, exist_ok=True)
        self.yaml.write_text(yaml.safe_dump(self.declared, sort_keys=False))

    def bring(self, files: int = 1, rows: int = 60, *, bad: int = 2, large: int = 0) -> list[Path]:
        """Deliver files of changes: new keys and old ones, deletes, ties and duplicates, and
        refused lines.

        `bad` lines of each are refused, `large` rows of the first fail the gate.
        """
        return [self._bring(rows, bad, 0 if at else large) for at in range(files)]

    def _bring(self, rows: int, bad: int, large: int) -> Path:
        self.moment += 1
        at, lines = self.moment, list[str]()
        for n in range(rows):
            row: dict[str, Any] = {
                "id": f"k{(at * 7 + n) % KEYS}",
                "seq": at * 2 + n % 3,
                "a": n,
                "b": f"{at}/{n}",
            }
            lines.append(json.dumps(row | ({"op": "d"} if n % 11 == 10 else {})))
        lines += [
            lines[0],
            *[json.dumps({"id": f"bad{n}", "seq": at, "a": -1}) for n in range(bad)][:-1],
        ]
        lines += ["no json"] * min(bad, 1)
        lines += [json.dumps({"id": f"large{n}", "seq": at, "a": LARGE}) for n in range(large)]
        return self.deliver(*lines, name=f"{at:04}.json")

    def drop_bytes(self, name: str, content: bytes) -> Path:
        """Deliver a file of any bytes, in one piece."""
        draft = self.home / f".{name}"
        draft.write_bytes(content)
        return draft.rename(self.landing / name)

    def rewrite(self, path: Path, *lines: str) -> None:
        """Write other lines into a file that was read; what it was is kept apart, as that is what
        was drained.
        """
        self.originals.mkdir(exist_ok=True)
        shutil.copy(path, self.originals)
        path.write_text("".join(f"{line}\n" for line in lines))

    @contextmanager
    def brake(self, after: int = 0) -> Iterator[None]:
        """Hold its driver inside a batch, once `after` more batches are in the ledger; let go with
        the block.
        """
        log = self.lake / "ledger" / "f" / "_delta_log"
        assert log.is_dir(), "a pipeline is braked once it has a ledger"
        self._held.unlink(missing_ok=True)
        self._hold.write_text(str(len(list(log.glob("0*.json"))) + after))
        try:
            yield
        finally:
            self.release()

    def release(self) -> None:
        """Let its driver go on."""
        self._hold.unlink(missing_ok=True)

    def held(self) -> int | None:
        """The Python process of the driver that is held; None while there is none."""
        try:
            pid = int(self._held.read_text())
        except (FileNotFoundError, ValueError):
            return None
        return pid if alive(pid) else None

    def await_held(self, patience: float = 300) -> int:
        """Wait until its driver is held; that driver's Python process."""
        until = time.monotonic() + patience
        while (pid := self.held()) is None:
            assert time.monotonic() < until, f"no driver of {self.spec.pipeline} came to its batch"
            time.sleep(0.05)
        return pid

    def notes(self, step: str) -> set[Path]:
        """What drivers leave while they are at work on a step, and after they died at it."""
        return set(
            (self.lake / "_draindown" / self.spec.pipeline / "f" / "reports").glob(
                f"*/{step}@*.at-work"
            )
        )


@dataclass(frozen=True)
class Meant:
    """What raw files mean, in plain Python. `live`: rows (seq, a, b) by id; `refused`: (file, line)
    of each.

    `lines`: all of them; `blank`: those without anything.
    """

    live: dict[str, tuple[int, int | None, str | None]]
    refused: set[tuple[str, int]]
    lines: int
    blank: int


def meant(files: Iterator[Path] | list[Path], without: set[str]) -> Meant:
    """Fold the lines of files, whatever their order; files named in `without` were parked, or are
    not read yet.
    """
    changes, refused, lines, blank = list[Change](), set[tuple[str, int]](), 0, 0
    for file in (file for file in files if file.name not in without):
        for at, line in enumerate(_text(file).splitlines(), 1):
            lines += 1
            if not line.strip():
                blank += 1
                continue
            row = _row(line)
            if row is None or (row.get("op") != "d" and (row.get("a") or 0) < 0):
                refused |= {(file.name, at)}
                continue
            content = {name: row.get(name) for name in ("op", "a", "b", "part", "region")}
            changes.append(Change((row["id"],), row["seq"], row.get("op") == "d", content))
    live, _ = fold(changes)
    rows = {str(key): (c.sequence, c.content["a"], c.content["b"]) for (key,), c in live.items()}
    return Meant(rows, refused, lines, blank)  # type: ignore[arg-type]


def _text(file: Path) -> str:
    content = file.read_bytes()
    return (gzip.decompress(content) if file.suffix == ".gz" else content).decode()


def _row(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
