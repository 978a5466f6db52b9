"""Progress hooks: called after each step of long work, to detect a lost lease or to inject a
fault.
"""

from __future__ import annotations

from collections.abc import Callable

StepHook = Callable[[str], None]
"""Called with each step's name when the step completes. An exception it raises aborts the work
before the next step.
"""


def ignore_step(step: str) -> None:
    """A progress hook that ignores every step."""
    del step
