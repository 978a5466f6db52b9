"""What all kinds of sinks have in common in a pipeline file."""

from __future__ import annotations

from typing import ClassVar

from draindown.base.digests import Meaning
from draindown.config.base import Model

AT_LEAST_ONCE, EXACTLY_ONCE = "at_least_once", "exactly_once"


class SinkSpec(Model):
    """Where rows go to beside the table, and how a client connects."""

    kind: ClassVar[str]
    """The key of the pipeline file that names a sink of this kind, and its name in every
    registry.
    """

    @property
    def delivered(self) -> str:
        """How often a row may arrive."""
        raise NotImplementedError

    def meaning(self) -> Meaning:
        """Return which table or topic it is, in the words of a sink's fingerprint."""
        raise NotImplementedError

    @property
    def place(self) -> str:
        """Where rows go, for people. Holds no secret."""
        raise NotImplementedError
