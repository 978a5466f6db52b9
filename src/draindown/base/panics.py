"""Panics of libraries that are written in Rust, such as deltalake: named as errors, and without
their backtrace.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from draindown.base.errors import said


class Panic(Exception):
    """A library that is written in Rust gave up: a bug of it, or what it does where a disk is
    full.
    """


def without_backtrace() -> None:
    """Have panics printed without a backtrace, unless the environment asks for one.

    Call it before deltalake is imported, which asks for backtraces if nobody said otherwise.
    """
    os.environ.setdefault("RUST_BACKTRACE", "0")


@contextmanager
def as_error() -> Iterator[None]:
    """Raise a panic of the block as a Panic. It is no Exception itself: handlers of errors would
    not see it.
    """
    try:
        yield
    except BaseException as error:
        # PyO3 makes the class, and no module exports it
        if type(error).__name__ != "PanicException":
            raise
        raise Panic(said(error)) from error
