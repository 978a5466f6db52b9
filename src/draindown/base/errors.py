"""The errors that a user can meet. Each says what was tried, found and changed, and what to type
next.

DraindownError
├── GateFailed        the data did not pass the gate; nothing was published
├── TransientError    a retry may succeed (a held lease, a failing disk)
├── TerminalError     a person must act (configuration, checkpoint mismatch, lost input)
└── Crash             an unforeseen error; a retry may succeed
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from draindown.base.formatting import for_bash


class DraindownError(Exception):
    """An error that tells the person on call what was tried, found and changed, and what to do
    next.

    Attributes:
        code: stable kebab-case name of the condition; tests and tools match the code, never the
        prose. tried: the operation that failed. found: the cause of the failure. changed: whether
        anything was written before the failure. next: commands or actions that help, most helpful
        first. in_order: if true, `next` lists the steps of one procedure in order; otherwise each
        entry is an alternative.
    """

    def __init__(
        self,
        code: str,
        *,
        tried: str,
        found: str,
        changed: str = "nothing was changed",
        next: str | Sequence[str] = (),
        in_order: bool = False,
    ) -> None:
        self.code = code
        self.tried = tried
        self.found = found
        self.changed = changed
        self.next = (next,) if isinstance(next, str) else tuple(next)
        self.in_order = in_order
        super().__init__(str(self))

    def __str__(self) -> str:
        return described(self.as_dict())

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.as_dict()))

    def as_dict(self) -> dict[str, object]:
        """Return the error as a flat object, in the form that reports and `--json` output
        contain.
        """
        return {
            "code": self.code,
            "tried": self.tried,
            "found": self.found,
            "changed": self.changed,
            "next": list(self.next),
            "in_order": self.in_order,
        }


def described(error: Mapping[str, Any]) -> str:
    """Format an error for people. `error` is the result of `as_dict`."""
    lines = [f"{error.get('code')}: {error.get('found')}", f"  tried:   {error.get('tried')}"]
    lines += [f"  changed: {error.get('changed')}"]
    lines += [f"  {label + ':':<8} {step}" for label, step in next_steps(error)]
    return "\n".join(lines)


def next_steps(error: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (label, command) pairs: alternatives as `next` and `or`, ordered steps as `next 1`,
    `next 2`.

    `error` is the result of `as_dict`.
    """
    commands = [for_bash(str(command)) for command in error.get("next") or ()]
    for at, command in enumerate(commands):
        if error.get("in_order") and len(commands) > 1:
            yield f"next {at + 1}", command
        else:
            yield "or" if at else "next", command


def _rebuild(kind: type[DraindownError], fields: dict[str, object]) -> DraindownError:
    return kind(**fields)  # type: ignore[arg-type]


def said(error: BaseException) -> str:
    """Return the message of an error, or "" if it can't be read, as for an error of a JVM that has
    ended.
    """
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a failure to read the message must not hide the error
        return ""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message; of an error in the JVM that of Java's
    exception.
    """
    text = said(error).strip()
    # py4j names the call, then "\n: ", then the exception
    if text.startswith("An error occurred while calling "):
        text = text.partition("\n: ")[2] or text
    return text.partition("\n")[0]


class GateFailed(DraindownError):
    """The gate judged the unpublished rows and refused them. A retry fails until the rows or the
    suite change.
    """


class TransientError(DraindownError):
    """The same command may succeed later, without anyone acting."""


class TerminalError(DraindownError):
    """The same command fails again until a person acts."""


class Crash(DraindownError):
    """An unforeseen error. Completed commits are whole, and the same command may succeed."""
