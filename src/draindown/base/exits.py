"""Exit codes of every command and job: sysexits numbers, mapped here and nowhere else."""

from __future__ import annotations

from enum import IntEnum

from draindown.base.errors import Crash, DraindownError, GateFailed, TerminalError, TransientError


class Exit(IntEnum):
    """What a process of draindown says by its exit code."""

    DONE = 0  # drained, bounded or idle: the report says which
    FINDINGS = 1  # a looking command (audit, doctor) looked and found something wrong
    USAGE = 2  # the command line itself was wrong
    GATE_FAILED = 65  # EX_DATAERR
    CRASH = 70  # EX_SOFTWARE: not foreseen; a retry may help
    TRY_AGAIN = 75  # EX_TEMPFAIL
    NEEDS_PERSON = 78  # EX_CONFIG


def exit_for(error: BaseException) -> Exit:
    """The exit code that tells a caller what kind of error ended the process."""
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
