"""Errors that are not draindown's own, named as such: what storage or a table refuses, or a bug,
with its trace.
"""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from draindown.base import panics
from draindown.base.errors import Crash, DraindownError, said
from draindown.base.formatting import shortened

_READERS = ("_internal", "deltalake", "pyarrow")
"""Packages whose errors mean that a table, or a file of one, is not as it was written. `_internal`
is deltalake's.
"""


@contextmanager
def naming(command: str) -> Iterator[None]:
    """Raise any error of the block as one of draindown's, so that one flow does not hide the
    others.

    `command`: what to type to see it again.
    """
    try:
        with panics.as_error():
            yield
    except DraindownError:
        raise
    except Exception as error:
        raise named(error, command) from error


def named(error: Exception, command: str) -> DraindownError:
    """Return the error that any other one stands for. `command`: what raised it, as it is typed."""
    return _foreseen(error, command) or _unforeseen(error, command)


def _foreseen(error: Exception, command: str) -> DraindownError | None:
    from draindown.lake import storage, torn

    changed = "unknown; every command may be repeated safely"
    return storage.refusal(
        error, None, tried=command, changed=changed, again=command
    ) or torn.of_error(error)


def _unforeseen(error: Exception, command: str) -> DraindownError:
    with tempfile.NamedTemporaryFile(
        "w", prefix="draindown-", suffix=".traceback", delete=False
    ) as file:
        traceback.print_exception(error, file=file)
    of_table = type(error).__module__.partition(".")[0] in _READERS
    first = (
        "draindown doctor   # if a table can't be read, it names which, and what helps"
        if of_table
        else "try again once"
    )
    return Crash(
        "unforeseen",
        tried=command,
        found=f"{type(error).__name__}: {shortened(said(error))}",
        changed="unknown; every command may be repeated safely",
        next=[first, f"less {file.name}   # the trace, to report if it comes again"],
        in_order=True,
    )
