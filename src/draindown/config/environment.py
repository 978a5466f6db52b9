"""The environment of a project that a process works in: `--env`, or DRAINDOWN_ENV."""

from __future__ import annotations

import os
from collections.abc import Mapping

from draindown.base.errors import TerminalError

VARIABLE = "DRAINDOWN_ENV"
"""Environment variable: the name of the environment."""


def refuse_other(
    made_for: str, environ: Mapping[str, str] = os.environ, *, tried: str, next: str
) -> None:
    """Raise TerminalError `environment-mismatch` if the process is of another environment.

    `made_for`: the environment of a command, a request or a DAG; "" without environments. Looks at
    nothing but the variable. `next`: the command that works.
    """
    own = environ.get(VARIABLE, "")
    if made_for and own and own != made_for:
        raise TerminalError(
            "environment-mismatch",
            tried=tried,
            found=f"it is for environment {made_for}, and this process is of {own} ({VARIABLE})",
            changed="nothing",
            next=next,
        )
