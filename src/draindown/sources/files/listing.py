"""List a source: the files that a glob matches, oldest first, and the files left out, each with its
reason.

Segments of a glob match as in `fnmatch`; `**` stands for any number of directories, `{a,b}` for
either. An mtime orders files and tells whether they have settled. It never decides whether a file
is read: old, future and zero mtimes all are.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shlex
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal

from draindown.base.errors import TerminalError
from draindown.base.findings import Finding
from draindown.config.sources import FilesSource
from draindown.sources.objects import SourceFile, mtime_ns

_MAGIC = re.compile(r"[*?\[{]")
_BRACES = re.compile(r"\{([^{}]*)\}")
_UNREADABLE_NAME = re.compile(r"[:\x00-\x1f\x7f]")
_TEMPORARY = (
    ".tmp",
    ".temp",
    ".part",
    ".partial",
    ".crc",
    ".swp",
    "~",
    "._COPYING_",
    ".filepart",
    ".crdownload",
)
_SHOWN = 10  # findings of one kind before the rest is only counted


@dataclass(frozen=True)
class Listing:
    """The files ready to be read, ordered by (mtime, path), and findings about the others."""

    files: list[SourceFile]
    findings: list[Finding]


def _refuse_unreadable(source: FilesSource, base: Path) -> None:
    try:
        with os.scandir(base) as entries:
            next(entries, None)
    except PermissionError as error:
        raise TerminalError(
            "source-unreadable",
            tried=f"list {source.files}",
            found=f"{base}: {error.strerror}",
            next=[
                f"ls -ld {shlex.quote(str(base))}   # it needs r and x for the user that runs the tasks"
            ],
        ) from error


def list_source(source: FilesSource, root: Path, now: datetime) -> Listing:
    """List the source.

    Raises TerminalError `source-missing` if the glob's fixed directory does not exist,
    `source-unreadable` if this user may not list it: a source that nobody can see must not pass for
    an empty one.
    """
    choices = [_parts(root, text) for text in _expand(source.files)]
    base = directory_of(source, root)
    if not base.is_dir():
        raise TerminalError(
            "source-missing",
            tried=f"list {source.files}",
            found=f"{base} is {'no directory' if os.path.lexists(base) else 'not there'}",
            next=[f"mkdir -p {shlex.quote(str(base))}", "correct `files` in the pipeline's source"],
        )
    _refuse_unreadable(source, base)
    walk = _Walk(now.timestamp(), source.min_file_age, base)
    for parts in choices:
        walk.visit(parts)
    files = sorted(walk.files.values(), key=lambda f: (f.mtime_ns, f.path))
    return Listing(files, walk.notes.findings())


def directory_of(source: FilesSource, root: Path) -> Path:
    """Return the directory that holds all of the source's files, at any depth."""
    return _fixed_directory(_parts(root, source.files))


def directories_of(source: FilesSource, root: Path) -> list[Path]:
    """Return the fixed directory of each choice of the source's glob: what is above the first
    pattern.
    """
    return list(
        dict.fromkeys(_fixed_directory(_parts(root, text)) for text in _expand(source.files))
    )


_Matcher = Callable[[str], object]
_Part = str | _Matcher | None
"""One segment of a path: a name, a matcher of names, or None for any number of directories."""


def _parts(root: Path, pattern: str) -> list[_Part]:
    """Return the segments of the absolute pattern. `root` is taken literally, even if it holds glob
    characters.
    """
    parts: list[_Part] = [] if pattern.startswith("/") else list(root.absolute().parts[1:])
    for text in pattern.split("/"):
        if text == ".." and parts and isinstance(parts[-1], str):
            parts.pop()
        elif text not in ("", "."):
            parts.append(_part(text))
    return parts


def _part(text: str) -> _Part:
    if text == "**":
        return None
    return re.compile(fnmatch.translate(text)).match if _MAGIC.search(text) else text


def _fixed_directory(parts: list[_Part]) -> Path:
    """Return the directory above the first segment that is a pattern, or above the file if none
    is.
    """
    names: list[str] = []
    for part in parts[:-1]:
        if not isinstance(part, str):
            break
        names.append(part)
    return Path("/", *names)


def _expand(pattern: str) -> list[str]:
    found = _BRACES.search(pattern)
    if not found:
        return [pattern]
    before, after = pattern[: found.start()], pattern[found.end() :]
    plain = (text for choice in found[1].split(",") for text in _expand(f"{before}{choice}{after}"))
    return list(dict.fromkeys(plain))


@dataclass
class _Notes:
    """Findings, the first few of each kind in full."""

    _kept: list[Finding] = field(default_factory=list)
    _counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(
        self, kind: Literal["ignored", "unsettled"], path: str, detail: str, next: str = ""
    ) -> None:
        self._counts[kind, detail] += 1
        if self._counts[kind, detail] <= _SHOWN:
            self._kept.append(Finding(kind=kind, subject=shown(path), detail=detail, next=next))

    def findings(self) -> list[Finding]:
        more = [
            Finding(kind=kind, subject=f"{count - _SHOWN} more", detail=detail)  # type: ignore[arg-type]
            for (kind, detail), count in self._counts.items()
            if count > _SHOWN
        ]
        return [*self._kept, *more]


def shown(path: str) -> str:
    """Return a path as printable text, control characters and broken UTF-8 escaped."""
    clean = path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in clean)


class _Walk:
    """Collects the files that expanded patterns match.

    A link below `base` that leads out of it is not followed. Otherwise anyone who may write there
    could have any file read that this process can read.
    """

    def __init__(self, now: float, settle: float, base: Path) -> None:
        self.files: dict[str, SourceFile] = {}
        self.notes = _Notes()
        self._now = now
        self._settle = settle
        self._base, self._depth = os.path.realpath(base), len(base.parts) - 1
        self._seen: set[str] = set()

    def visit(self, parts: list[_Part]) -> None:
        pending: list[tuple[str, int]] = [("/", 0)]
        done: set[tuple[str, int]] = set()
        while pending:
            step = pending.pop()
            if step not in done:
                done.add(step)
                pending += self._step(*step, parts)

    def _step(self, directory: str, at: int, parts: list[_Part]) -> Iterator[tuple[str, int]]:
        part, last = parts[at], at == len(parts) - 1
        if part is None:
            if last:
                self._take_matching(directory, _anything, directories=False)
            else:
                yield directory, at + 1
            yield from (
                (path, at) for path in self._directories(directory, _anything, follow=False)
            )
        elif isinstance(part, str):
            path = Path(directory, part)
            if last and os.path.lexists(path):
                self._take(str(path), part, path)
            elif (
                not last
                and path.is_dir()
                and not (at >= self._depth and self._leads_out(str(path), path))
            ):
                yield str(path), at + 1
        elif last:
            self._take_matching(directory, part)
        else:
            yield from ((path, at + 1) for path in self._directories(directory, part, follow=True))

    def _entries(self, directory: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(directory) as entries:
                return list(entries)
        except OSError as error:
            self.notes.add(
                "ignored",
                directory,
                f"directory can't be listed: {error.strerror}",
                "check its permissions",
            )
            return []

    def _directories(self, directory: str, matches: _Matcher, *, follow: bool) -> Iterator[str]:
        for entry in self._entries(directory):
            if not matches(entry.name) or not _is_directory(entry):
                continue
            if entry.name.startswith((".", "_")):
                self.notes.add(
                    "ignored", entry.path, "hidden directory", "rename it to have it read"
                )
            elif entry.is_symlink() and not follow:
                detail = "link to a directory, which ** doesn't follow"
                self.notes.add("ignored", entry.path, detail, "name it in `files`")
            elif not self._leads_out(entry.path, entry):
                yield entry.path

    def _take_matching(
        self, directory: str, matches: _Matcher, *, directories: bool = True
    ) -> None:
        for entry in self._entries(directory):
            if matches(entry.name) and (directories or not _is_directory(entry)):
                self._take(entry.path, entry.name, entry)

    def _leads_out(self, path: str, entry: Path | os.DirEntry[str]) -> bool:
        out = entry.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(self._base)
        if out:
            detail = "link that leads out of the source"
            self.notes.add(
                "ignored",
                path,
                detail,
                "copy or hard-link what it leads to, or name that place in `files`",
            )
        return out

    def _take(self, path: str, name: str, entry: Path | os.DirEntry[str]) -> None:
        if path in self._seen:
            return
        self._seen.add(path)
        reason = _bad_name(name) or _not_text(path)
        if reason:
            self.notes.add("ignored", path, reason, "rename it to have it read")
            return
        if self._leads_out(path, entry):
            return
        try:
            found = entry.stat()
        except OSError as error:
            detail = f"can't be looked at: {error.strerror}"
            self.notes.add("ignored", path, detail, "check what it links to, or its permissions")
            return
        if not stat.S_ISREG(found.st_mode):
            # `files` ends in a name, not in a pattern
            named = isinstance(entry, Path) and stat.S_ISDIR(found.st_mode)
            then = (
                f"name the files in it: end `files` in {name}/*"
                if named
                else "move it out of the source"
            )
            self.notes.add("ignored", path, f"{_file_type(found.st_mode)}, not a file", then)
        # an mtime slightly in the future is unsettled too, one years ahead is not
        elif abs(self._now - found.st_mtime) < self._settle:
            self.notes.add(
                "unsettled",
                path,
                f"changed less than {self._settle:g} s ago",
                "the next run takes it",
            )
        else:
            self.files[path] = SourceFile(path, found.st_size, mtime_ns(found))


def _anything(name: str) -> bool:
    return bool(name)


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _bad_name(name: str) -> str:
    if name.startswith((".", "_")):
        return "hidden: its name starts with '.' or '_'"
    if name.endswith(_TEMPORARY):
        return "temporary: its name ends like that of an unfinished file"
    if _UNREADABLE_NAME.search(name):
        return "its name holds a colon or a control character, which Spark can't read"
    return ""


def _not_text(path: str) -> str:
    try:
        path.encode()
    except UnicodeEncodeError:
        return "its name, or that of a directory on the way to it, is not UTF-8"
    return ""


def _file_type(mode: int) -> str:
    for test, text in (
        (stat.S_ISDIR, "a directory"),
        (stat.S_ISFIFO, "a pipe"),
        (stat.S_ISSOCK, "a socket"),
    ):
        if test(mode):
            return text
    return "a device"
