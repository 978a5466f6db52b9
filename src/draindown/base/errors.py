"""Every error a user can meet, each saying what was tried, found, changed, and what to type next.

DraindownError
├── GateFailed        the data did not pass its gate; nothing was published
├── TransientError    trying again later may help (a lease is held, storage hiccup)
├── TerminalError     a person must act (configuration, checkpoint mismatch, lost input)
└── Crash             nobody foresaw it; trying again may help
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


class DraindownError(Exception):
    """An error with the four things on-call needs.

    Attributes:
        code: stable kebab-case name of the condition; tests and tools match on it, never on prose.
        tried: what was being done.
        found: what was met instead.
        changed: whether anything was written before it failed.
        next: commands or acts that help, most helpful first.
        in_order: whether `next` are the steps of one way, in their order; otherwise each is a way of its own.
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
        """The error for machines: one flat object, as reports and `--json` carry it."""
        return {
            "code": self.code,
            "tried": self.tried,
            "found": self.found,
            "changed": self.changed,
            "next": list(self.next),
            "in_order": self.in_order,
        }


def described(error: Mapping[str, Any]) -> str:
    """An error as people read it, from what `as_dict` returns."""
    lines = [f"{error.get('code')}: {error.get('found')}", f"  tried:   {error.get('tried')}"]
    lines += [f"  changed: {error.get('changed')}"]
    lines += [f"  {label + ':':<8} {step}" for label, step in next_steps(error)]
    return "\n".join(lines)


def next_steps(error: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What to type, by label: alternatives as `next` and `or`, steps of one way as `next 1`, `next 2`.

    `error` is what `as_dict` returns.
    """
    commands = list(error.get("next") or ())
    for at, command in enumerate(commands):
        if error.get("in_order") and len(commands) > 1:
            yield f"next {at + 1}", str(command)
        else:
            yield "or" if at else "next", str(command)


def _rebuild(kind: type[DraindownError], fields: dict[str, object]) -> DraindownError:
    return kind(**fields)  # type: ignore[arg-type]


def said(error: BaseException) -> str:
    """What an error says of itself; nothing where not even that can be had, as of one in a JVM that is gone."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - whatever asking raises: the error itself is what matters
        return ""


class GateFailed(DraindownError):
    """The gate judged the unpublished rows and refused them; no retry helps until they change."""


class TransientError(DraindownError):
    """The same command may succeed later without anyone acting."""


class TerminalError(DraindownError):
    """The same command fails again until a person acts."""


class Crash(DraindownError):
    """Nobody foresaw this; whatever was done is whole, and the same command may succeed."""
