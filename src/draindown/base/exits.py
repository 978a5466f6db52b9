"""Exit codes of all commands and jobs: sysexits numbers. No other module maps them."""

from __future__ import annotations

from enum import IntEnum

from draindown.base.errors import Crash, DraindownError, GateFailed, TerminalError, TransientError


class Exit(IntEnum):
    """The exit code of a draindown process."""

    DONE = 0  # drained, stopped or idle: the report says which
    FINDINGS = 1  # a read-only command (audit, doctor, drill) completed and found something wrong
    USAGE = 2  # the command line itself was wrong
    GATE_FAILED = 65  # EX_DATAERR
    CRASH = 70  # EX_SOFTWARE: an unforeseen error; a retry may help
    TRY_AGAIN = 75  # EX_TEMPFAIL
    NEEDS_PERSON = 78  # EX_CONFIG


def exit_for(error: BaseException) -> Exit:
    """Return the exit code for the error that ended a process."""
    match error:
        case GateFailed():
            return Exit.GATE_FAILED
        case TransientError():
            return Exit.TRY_AGAIN
        case Crash():
            return Exit.CRASH
        case TerminalError() | DraindownError():
            return Exit.NEEDS_PERSON
        case _:
            return Exit.CRASH
