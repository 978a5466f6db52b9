"""Every error a user can meet, each saying what was tried, found, changed, and what to type next.

DraindownError
├── GateFailed        the data did not pass its gate; nothing was published
├── TransientError    trying again later may help (a lease is held, storage hiccup)
└── TerminalError     a person must act (configuration, checkpoint mismatch, lost input)
"""

from __future__ import annotations

from collections.abc import Sequence


class DraindownError(Exception):
    """An error with the four things on-call needs.

    Attributes:
        code: stable kebab-case name of the condition; tests and tools match on it, never on prose.
        tried: what was being done.
        found: what was met instead.
        changed: whether anything was written before it failed.
        next: commands or acts that help, most helpful first.
    """

    def __init__(
        self,
        code: str,
        *,
        tried: str,
        found: str,
        changed: str = "nothing was changed",
        next: str | Sequence[str] = (),
    ) -> None:
        self.code = code
        self.tried = tried
        self.found = found
        self.changed = changed
        self.next = (next,) if isinstance(next, str) else tuple(next)
        super().__init__(str(self))

    def __str__(self) -> str:
        lines = [f"{self.code}: {self.found}", f"  tried:   {self.tried}", f"  changed: {self.changed}"]
        lines += [f"  {'next:   ' if not i else '   or:   '} {step}" for i, step in enumerate(self.next)]
        return "\n".join(lines)

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
        }


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
