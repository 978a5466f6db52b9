"""Load pipeline files: read YAML, fill in environment variables, report each problem with file,
line and column.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import posixpath
import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from draindown.base.errors import TerminalError
from draindown.config.across import Project, has_readings
from draindown.config.derived import DerivedFlow
from draindown.config.file_errors import PROJECT_FILE, Unset, invalid, read_bytes, read_text
from draindown.config.models import PipelineSpec
from draindown.config.names import closest, near
from draindown.config.outline import Outline, declared_name, outline
from draindown.config.problems import explain
from draindown.config.sinks import expressions
from draindown.config.yaml_document import (
    Document,
    DocumentError,
    Lenient,
    Mark,
    Problem,
    build,
    read,
)

if TYPE_CHECKING:
    from draindown.config.layers import Layers

DIRECTORY = Path("dags", "pipelines")
"""Where pipeline files are, below the project root."""
_SUFFIXES = (".yaml", ".yml")
_SHOWN = 50
_LAYERED = re.compile(r"\b(?:defaults|connections?|template|params|lease)\b")
"""Words of a file that may have something to merge, in a project without a project file."""


@dataclass(frozen=True)
class BrokenPipeline:
    """A pipeline file that can't be loaded, kept so that a DAG can show its error.

    `name` is the declared name, else one made from the file's name. It is a valid DAG id and unique
    within one `load_all`. `schedule` is the schedule that the file declares, `outline.FALLBACK` if
    it can't be read, None for manual runs only. `lake` and `flows` are what it still says of them.
    """

    path: Path
    name: str
    error: TerminalError
    schedule: str | None = None
    lake: str = ""
    flows: tuple[str, ...] = ()


def load(path: Path, environ: Mapping[str, str], given: Layers | None = None) -> PipelineSpec:
    """Load the pipeline of one file. `given`: what its project gives it, see `given_in`.

    Raises TerminalError `invalid-pipeline`, which names every problem, or `unreadable-pipeline`.
    """
    return of_text(path, read_text(path), environ, given)


def of_text(
    path: Path, text: str, environ: Mapping[str, str], given: Layers | None = None
) -> PipelineSpec:
    """Return the pipeline of a text, as `load` does. `path`: for positions and errors.

    Raises Unset, too, if `given` is lenient.
    """
    document = merged(path, text, environ, given)
    problems = document.problems
    if isinstance(document.value, dict):
        try:
            spec = PipelineSpec.model_validate(document.value)
        except ValidationError as error:
            problems = [*problems, *explain(error, document)]
            if given is not None and given.lenient and all(one.variable for one in problems):
                raise Unset(path, problems, _tried(path, given)) from None
        if given is not None and given.lenient:
            problems = [one for one in problems if not one.variable]
        if not problems:
            found = spec.written_at(dict(_places(path, spec, document)))
            return found if given is None else found.within(given.environment)
    else:
        problems = [Problem(Mark(1, 1), (), _no_mapping(document))]
    raise invalid(path, problems, tried=_tried(path, given))


def merged(path: Path, text: str, environ: Mapping[str, str], given: Layers | None) -> Document:
    """Return a pipeline file with what its project gives it, before it is validated.

    Raises TerminalError `invalid-pipeline` if it is not YAML, or can't be merged.
    """
    problems: list[Problem] = []
    try:
        root = read(text)
        if given is not None and given.lenient:
            environ = Lenient(environ)
        if given is not None or _LAYERED.search(text):
            from draindown.config.layers import Layers, laid

            given = given or Layers()
            root, problems = laid(root, given, path, environ)
        document = build(root, environ, given.fills if given else None)
    except DocumentError as error:
        raise invalid(
            path, [Problem(error.mark, (), error.message)], tried=_tried(path, given)
        ) from None
    if problems:
        problems += document.problems
        if given is not None and given.lenient:
            problems = [one for one in problems if not one.variable] or problems
        raise invalid(path, problems, tried=_tried(path, given))
    return document


def given_in(root: Path, environ: Mapping[str, str]) -> Layers | None:
    """Return what the project file at `root` gives to pipelines; None without one.

    Raises TerminalError `invalid-project`, `environment-not-chosen`, `unknown-environment`, and as
    `file_errors.read_text`.
    """
    file = root / PROJECT_FILE
    if not file.exists():
        return None
    from draindown.config.project_file import layers

    return layers(file, environ)


def every_environment(root: Path, environ: Mapping[str, str]) -> list[Layers | None]:
    """Return what the project gives to pipelines in each of its environments; one value, which may
    be None, without environments. Variables of the chosen one must be set, of others need not.

    Raises as `given_in`, but for a project of which no environment is chosen.
    """
    file = root / PROJECT_FILE
    if not file.exists():
        return [None]
    from draindown.config.project_file import in_each

    return list(in_each(file, environ))


def _tried(path: Path, given: Layers | None) -> str:
    where = f" in environment {given.environment}" if given and given.environment else ""
    return f"load pipeline file {path}{where}"


def load_all(
    directory: Path, environ: Mapping[str, str] | None = None
) -> list[PipelineSpec | BrokenPipeline]:
    """Load every file of the directory, ordered by file name. A broken file does not hide the
    others; a broken project file breaks all of them.

    `environ` defaults to `os.environ`. The project file is two levels up, at the root. If several
    files declare the same pipeline name or write to the same place, all of them are broken, as no
    file has precedence. Raises TerminalError `no-pipelines` if there is no such directory.
    """
    environ = os.environ if environ is None else environ
    try:
        given = given_in(directory.parent.parent, environ)
    except TerminalError as error:
        loaded = dict.fromkeys(files_in(directory), error)
        return _named(loaded, {}, environ, None)
    return load_given(directory, environ, given)


def load_given(
    directory: Path, environ: Mapping[str, str], given: Layers | None
) -> list[PipelineSpec | BrokenPipeline]:
    """Load every file of the directory as `load_all` does, with what a project gives it."""
    loaded: dict[Path, PipelineSpec | TerminalError] = {}
    for path in files_in(directory):
        try:
            loaded[path] = load(path, environ, given)
        except TerminalError as error:
            loaded[path] = error
        except Exception as error:  # noqa: BLE001 - one bad file must not break every other pipeline
            message = f"can't be read: {type(error).__name__}: {error}"
            loaded[path] = invalid(path, [Problem(Mark(1, 1), (), message)])
    good = {path: spec for path, spec in loaded.items() if isinstance(spec, PipelineSpec)}
    whole = _beside_each_other(loaded | _conflicts(good), good, environ)
    return _named(whole, good, environ, given)


def load_alone(path: Path, root: Path, environ: Mapping[str, str]) -> PipelineSpec:
    """Load the pipeline of one file, and check that no other file of the project conflicts with it.

    Raises TerminalError as `load` and `given_in` do, and `conflicting-pipelines`.
    """
    return load_beside(path, root, environ, given_in(root, environ))


def load_beside(
    path: Path, root: Path, environ: Mapping[str, str], given: Layers | None
) -> PipelineSpec:
    """Load the pipeline of one file as `load_alone` does, with what its project gives it."""
    home = root / DIRECTORY
    spec = load(path, environ, given)
    real = os.path.realpath  # Path.resolve raises on a link that leads to itself
    if Path(real(path)).parent == Path(real(home)):
        for found in load_given(home, environ, given):
            if isinstance(found, BrokenPipeline) and real(found.path) == real(path):
                raise found.error
            if isinstance(found, PipelineSpec) and found.pipeline == spec.pipeline:
                return spec.beside(found.neighbours)
    return (
        _beside(path, spec, load_given(home, environ, given) if home.is_dir() else [])
        if has_readings(spec)
        else spec
    )


def _beside(
    path: Path, spec: PipelineSpec, others: Iterable[PipelineSpec | BrokenPipeline]
) -> PipelineSpec:
    """Return a pipeline whose file is elsewhere, with what the files of the project say."""
    found = list(others)
    good = [one for one in found if isinstance(one, PipelineSpec) and one.pipeline != spec.pipeline]
    project = Project(
        [*good, spec], {one.name: one.path for one in found if isinstance(one, BrokenPipeline)}
    )
    if problems := project.problems(spec):
        raise _unreadable_tables(path, problems)
    return project.beside(spec)


def _beside_each_other(
    loaded: Mapping[Path, PipelineSpec | TerminalError],
    good: Mapping[Path, PipelineSpec],
    environ: Mapping[str, str],
) -> dict[Path, PipelineSpec | TerminalError]:
    """Give each pipeline what the others say, or an error if it reads tables that it can't read."""
    broken = {
        path: _outline(path, good.get(path), environ).name
        for path in loaded
        if _is_broken(loaded[path])
    }
    specs = {path: spec for path, spec in loaded.items() if isinstance(spec, PipelineSpec)}
    project = Project(list(specs.values()), {name: path for path, name in broken.items() if name})
    problems = {path: project.problems(spec) for path, spec in specs.items()}
    return dict(loaded) | {
        path: _unreadable_tables(path, problems[path]) if problems[path] else project.beside(spec)
        for path, spec in specs.items()
    }


def _is_broken(found: PipelineSpec | TerminalError) -> bool:
    return not isinstance(found, PipelineSpec)


def _unreadable_tables(path: Path, lines: list[str]) -> TerminalError:
    return TerminalError(
        "invalid-pipeline",
        tried=f"load pipeline file {path}",
        found="\n".join(lines[:_SHOWN]),
        next=f"draindown validate {shlex.quote(str(path))}",
    )


def find(argument: str, root: Path) -> Path:
    """Return the file that a PIPELINE argument names: the path of a YAML file, or a name in
    `root`/dags/pipelines.

    Raises TerminalError `pipeline-not-found`, which lists the pipelines.
    """
    if argument.endswith(_SUFFIXES) or "/" in argument:
        for path in (root / argument, Path(argument)):
            if path.is_file() or (path.is_dir() and path.suffix in _SUFFIXES):
                return path
    directory = root / DIRECTORY
    files = list(files_in(directory)) if directory.is_dir() else []
    for path in files:
        if path.stem == argument:
            return path
    named = {name: path for path in files if (name := _declared_name(path))}
    if argument in named:
        return named[argument]
    raise _not_found(argument, directory, sorted({path.stem for path in files} | set(named)))


def digest(spec: PipelineSpec) -> str:
    """Return the SHA-256 of the resolved spec. It is equal for all spellings of the same
    meaning.
    """
    return hashlib.sha256(spec.model_dump_json().encode()).hexdigest()


def _no_mapping(document: Document) -> str:
    if document.value is None:
        return "is empty; a pipeline needs at least pipeline and flows, and a lake here or in draindown.yaml"
    return "must be keys and values, such as `pipeline: flights`"


def _places(
    path: Path, spec: PipelineSpec, document: Document
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the positions of the pipeline's expressions, sources and transforms, by path."""
    for name, flow in spec.flows.items():
        places = [
            *flow.expressions,
            *expressions(flow.sinks),
            ("source", flow.source.kind),
            ("transform",),
        ]
        places += [("sinks", sink, one.kind) for sink, one in flow.sinks.items()]
        if isinstance(flow, DerivedFlow):
            places.append(flow.part)
            places += [flow.place_of_table(at) for at in range(len(flow.source.read))]
        for place in places:
            whole = ("flows", name, *place)
            mark = document.key_mark(whole)
            yield whole, f"{mark.file or path}:{mark.line}:{mark.column}"


def files_in(directory: Path) -> Iterator[Path]:
    """Yield the pipeline files of a directory by name. Raises TerminalError `no-pipelines`."""
    try:
        found = sorted(directory.iterdir())
    except OSError as error:
        raise TerminalError(
            "no-pipelines",
            tried=f"list pipeline files in {directory}",
            found=f"{directory} {'does not exist' if not directory.exists() else f'is not readable: {error.strerror}'}",
            next=f"ls -ld {shlex.quote(str(directory))}"
            if directory.exists()
            else "draindown init",
        ) from None
    for path in found:
        if path.suffix in _SUFFIXES and not path.name.startswith("."):
            yield path


def _text(path: Path) -> str | None:
    """Return the readable text of a broken file; None if it can't be opened."""
    try:
        return read_bytes(path).decode("utf-8-sig", errors="replace")
    except TerminalError:
        return None


def _declared_name(path: Path) -> str | None:
    text = _text(path)
    return None if text is None else declared_name(text)


def _not_found(argument: str, directory: Path, known: list[str]) -> TerminalError:
    there = f"there {'is' if len(known) == 1 else 'are'} {', '.join(known) or 'none'}"
    close = closest(argument, known)
    return TerminalError(
        "pipeline-not-found",
        tried=f"find pipeline {argument!r} in {directory}"
        + (", and as a file" if "/" in argument or "." in argument else ""),
        found=f"no such pipeline; {there}{near(argument, known)}",
        next=f"draindown plan {shlex.quote(close)}"
        if close
        else "draindown status"
        if known
        else "draindown init",
    )


def _conflicts(specs: Mapping[Path, PipelineSpec]) -> dict[Path, TerminalError]:
    """Return an error for each file whose pipeline name or paths another file claims too."""
    claims: dict[str, list[Path]] = defaultdict(list)
    for path, spec in specs.items():
        for claim in _claims(spec):
            claims[claim].append(path)
    found: dict[Path, list[str]] = defaultdict(list)
    for claim, paths in claims.items():
        for path in paths if len(paths) > 1 else ():
            others = ", ".join(str(other) for other in paths if other != path)
            found[path].append(f"{path}: {claim} is also in {others}: it must have a single writer")
    return {path: _conflict(path, lines) for path, lines in found.items()}


def _claims(spec: PipelineSpec) -> Iterable[str]:
    lake = posixpath.normpath(spec.lake)
    yield f"pipeline {spec.pipeline}"
    for name, flow in spec.flows.items():
        yield f"flow {name} in lake {lake}"
        yield f"table {flow.table_name(name)} in lake {lake}"


def _conflict(path: Path, lines: list[str]) -> TerminalError:
    return TerminalError(
        "conflicting-pipelines",
        tried=f"load pipeline file {path}",
        found="\n".join(lines),
        next=[
            "rename the pipeline, the flow or target.table in one of the files",
            "draindown validate",
        ],
        in_order=True,
    )


def _named(
    loaded: Mapping[Path, PipelineSpec | TerminalError],
    good: Mapping[Path, PipelineSpec],
    environ: Mapping[str, str],
    given: Layers | None,
) -> list[PipelineSpec | BrokenPipeline]:
    """Replace the broken files by BrokenPipeline.

    `good` are the specs that are valid alone, conflicting ones included.
    """
    taken = {spec.pipeline for spec in loaded.values() if isinstance(spec, PipelineSpec)}
    result: list[PipelineSpec | BrokenPipeline] = []
    for path, spec in loaded.items():
        if isinstance(spec, PipelineSpec):
            result.append(spec)
            continue
        said = _outline(path, good.get(path), environ, given)
        stem = re.sub(r"[^A-Za-z0-9_.-]", "_", path.stem)[:200] or "_"
        wanted = (
            *([said.name] if said.name else []),
            stem,
            *(f"{stem}_{i}" for i in range(2, len(loaded) + 3)),
        )
        name = next(n for n in wanted if n not in taken)
        taken.add(name)
        result.append(BrokenPipeline(path, name, spec, said.schedule, said.lake, said.flows))
    return result


def _outline(
    path: Path, spec: PipelineSpec | None, environ: Mapping[str, str], given: Layers | None = None
) -> Outline:
    """Return what a broken file still says of its pipeline."""
    if spec is not None:
        return Outline(spec.pipeline, spec.schedule, spec.lake, tuple(spec.flows))
    text = _text(path)
    if text is None:
        return Outline()
    whole = None
    if given is not None:
        with contextlib.suppress(TerminalError):
            whole = merged(path, text, environ, given).value
    return outline(text, environ, whole)
