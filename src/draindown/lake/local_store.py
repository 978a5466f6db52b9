"""The store on a file system: a key is the path of a file."""

from __future__ import annotations

import errno
import glob
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from draindown.lake.store import Entry, Tag

_NAMED = 40  # characters of the file's name in the draft's name; a file name has at most 255
_TRIES = 5  # attempts to create a draft, while other processes remove the empty directory


class LocalStore:
    """The store on a file system: keys are paths. Files and directories that it creates are
    readable by this user only.

    `create` makes a hard link, which is atomic, also on NFS. Names that begin with a dot are
    drafts, not keys.
    """

    def read(self, key: str) -> tuple[bytes, Tag] | None:
        """Return the content and its tag, or None if the file is absent."""
        try:
            content = Path(key).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return content, _tag(content)

    def put(self, key: str, content: bytes) -> Tag:
        """Write the content to a draft and rename it. Return its tag."""
        with _draft(Path(key), content) as draft:
            draft.replace(key)
        _settle(Path(key))
        return _tag(content)

    def create(self, key: str, content: bytes) -> Tag | None:
        """Write the content to a draft and hard-link it, which fails if the file exists. Return its
        tag, else None.
        """
        with _draft(Path(key), content) as draft:
            try:
                os.link(draft, key)
            except FileExistsError:
                # if an NFS client retries after a lost reply, the link exists but the call fails;
                # the link count tells
                if draft.stat().st_nlink < 2:
                    return None
        _settle(Path(key))
        return _tag(content)

    def list(self, prefix: str, after: str | None = None) -> Iterator[Entry]:
        """Yield the entries whose keys begin with `prefix` and are greater than `after`, sorted by
        key.
        """
        yield from _entries(prefix.rpartition("/")[0], prefix, after or "")

    def delete(self, key: str) -> None:
        """Delete the file, drafts of it that a crashed writer left, and the directory if it is
        empty then.
        """
        path = Path(key)
        path.unlink(missing_ok=True)
        for draft in path.parent.glob(f"{glob.escape(_drafts_of(path))}*.tmp"):
            draft.unlink(missing_ok=True)
        with suppress(OSError):  # the directory is not empty, or it is gone
            path.parent.rmdir()

    def delete_prefix(self, prefix: str) -> None:
        """Delete the directory with everything in it, drafts included."""
        # not shutil.rmtree: it fails where another process deletes as well
        for home, directories, names in os.walk(prefix, topdown=False, onerror=_unless_absent):
            links = (name for name in directories if Path(home, name).is_symlink())
            for name in (*names, *links):
                Path(home, name).unlink(missing_ok=True)
            with suppress(OSError):  # another process deleted it, or wrote to it
                Path(home).rmdir()


@contextmanager
def _draft(path: Path, content: bytes) -> Iterator[Path]:
    """Yield a temporary file beside `path` with the content, synced to disk. It is deleted when the
    block exits.
    """
    handle, name = _made(path)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def _made(path: Path) -> tuple[int, str]:
    for left in reversed(range(_TRIES)):
        _make_private(path.parent)
        try:
            return tempfile.mkstemp(dir=path.parent, prefix=_drafts_of(path), suffix=".tmp")
        except FileNotFoundError:
            if not left:
                raise
    raise AssertionError("the last try returns or raises")


def _make_private(directory: Path) -> None:
    """Create a directory and those above it that are missing, with access for this user only."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)  # `parents` would leave the mode to the umask


def _drafts_of(path: Path) -> str:
    return f".{path.name[:_NAMED]}."


def _settle(path: Path) -> None:
    """Sync the directory to disk. Errors are ignored: the write itself has succeeded."""
    with suppress(OSError):
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _tag(content: bytes) -> Tag:
    return hashlib.sha256(content).hexdigest()


def _entries(directory: str, prefix: str, after: str) -> Iterator[Entry]:
    """Yield the files of a directory and below, in the order of their keys, drafts excluded.

    A directory is opened when the listing gets to it, and not if all its keys are out of range: who
    takes the first entry alone pays for the way to it.
    """
    for name, is_directory in _names(directory):
        key = f"{directory}/{name}"
        if is_directory:
            is_within = key.startswith(prefix) or prefix.startswith(key)
            if is_within and (key > after or after.startswith(key)):
                yield from _entries(key.removesuffix("/"), prefix, after)
        elif key.startswith(prefix) and key > after and not name.startswith("."):
            with _passed_over():
                known = os.stat(key)  # noqa: PTH116 - of many files; a Path takes as long again
                if stat.S_ISREG(known.st_mode):
                    yield Entry(key, known.st_size, datetime.fromtimestamp(known.st_mtime, UTC))


def _names(directory: str) -> list[tuple[str, bool]]:
    """Return the names in a directory, those of directories with a slash: so they sort as keys."""
    try:
        with os.scandir(directory) as entries:
            found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(
        (f"{name}/" if is_directory else name, is_directory) for name, is_directory in found
    )


@contextmanager
def _passed_over() -> Iterator[None]:
    """Pass over a file that was deleted since it was listed, and a link that leads nowhere."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise


def _unless_absent(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error
