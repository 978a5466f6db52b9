"""A panic of a library in Rust is an error like others for handlers, and shows no backtrace."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from draindown.base import panics
from draindown.base.errors import DraindownError
from draindown.cli.failures import naming

PanicException = type("PanicException", (BaseException,), {})  # as PyO3 makes it
DIES = """
import os, sys
from draindown.cli.program import COMMANDS, main

def panic(code: int) -> None:
    print(f"RUST_BACKTRACE={os.environ['RUST_BACKTRACE']}", file=sys.stderr)
    if code:
        raise type("PanicException", (BaseException,), {})("Already shut down")

COMMANDS["panic"] = panic
sys.exit(main())
"""


def run(code: int) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if name != "RUST_BACKTRACE"}
    command = [sys.executable, "-c", DIES, "panic", str(code)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environ)


@pytest.mark.parametrize(("code", "exit_code"), [(0, 0), (1, 70)])
def test_a_panic_ends_a_command_as_an_error_without_a_traceback(code: int, exit_code: int) -> None:
    done = run(code)
    assert done.returncode == exit_code
    assert "RUST_BACKTRACE=0" in done.stderr and "Traceback" not in done.stderr
    assert ("unforeseen: Panic: Already shut down" in done.stderr) == bool(code)


def test_a_panic_is_an_exception_and_nothing_else_becomes_one() -> None:
    with pytest.raises(panics.Panic, match="shut down"), panics.as_error():
        raise PanicException("shut down")
    for kind in (KeyboardInterrupt, SystemExit, ValueError):
        with pytest.raises(kind), panics.as_error():
            raise kind
    with pytest.raises(DraindownError) as caught, naming("draindown report"):
        raise PanicException("shut down")
    assert caught.value.code == "unforeseen"


def test_a_panic_on_a_full_disk_is_a_full_disk() -> None:
    with pytest.raises(DraindownError) as caught, naming("draindown report"):
        raise PanicException("write: No space left on device (os error 28)")
    assert caught.value.code == "disk-full"


def test_backtraces_are_printed_for_whoever_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUST_BACKTRACE", "full")
    panics.without_backtrace()
    assert os.environ["RUST_BACKTRACE"] == "full"
    monkeypatch.delenv("RUST_BACKTRACE")
    panics.without_backtrace()
    assert os.environ["RUST_BACKTRACE"] == "0"
