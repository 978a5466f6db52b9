"""The identity of a lake.

A path does not identify a lake: the directory of a disk that is not mounted is an empty one. So
each lake holds an id, and the project the id that it found at each path (`lake_records`). The
identity is written first: after a crash between both, the next run records what it finds.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from draindown.base.clock import now
from draindown.lake import directories
from draindown.lake.home import identity_of, state_of


@dataclass(frozen=True)
class Identity:
    """The id of a lake. `at`, `by`: when it was begun, and by whom."""

    id: str
    at: str
    by: str

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Self:
        """Return the identity in a document. Raises LookupError, ValueError if it has none."""
        if not (isinstance(content["id"], str) and content["id"]):
            raise ValueError("it has no id")
        return cls(content["id"], str(content["at"]), str(content["by"]))


def read(lake: str) -> Identity | None:
    """Return the identity of a lake, or None without one. Raises TerminalError `state-damaged`."""
    return identity_of(lake).parsed(
        Identity.of,
        without="then `draindown init --lake` writes the id that is on record",
    )


def has_flows(lake: str) -> bool:
    """Return whether flows have state in the lake."""
    return any(not name.startswith("_") for name in directories.names(state_of(lake)))


def begin(lake: str, by: str, id: str = "") -> Identity:
    """Give a lake an identity, and return the one that it has then: of concurrent calls, one id
    counts.
    """
    directories.make(state_of(lake))
    own = Identity(id or secrets.token_hex(8), now().isoformat(timespec="seconds"), by)
    if identity_of(lake).create(asdict(own)):
        directories.share(identity_of(lake).path)  # no secret
    return read(lake) or own
