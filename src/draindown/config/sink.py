"""What all kinds of sinks have in common in a pipeline file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from draindown.base.digests import Meaning
from draindown.config.base import Model
from draindown.config.names import ColumnName

AT_LEAST_ONCE, EXACTLY_ONCE = "at_least_once", "exactly_once"


class SinkSpec(Model):
    """Where rows go to beside the table, and how a client connects."""

    kind: ClassVar[str]
    """The key of the pipeline file that names a sink of this kind, and its name in every
    registry.
    """
    DELIVERIES: ClassVar[tuple[str, ...]]
    """The deliveries that it has; the first where the file doesn't say."""
    REFUSED: ClassVar[Mapping[str, str]] = {}
    """Why it has no other delivery, with the way out."""
    OF_DELIVERY: ClassVar[Mapping[str, str]] = {}
    """The fields that count for one delivery only, with that delivery."""

    keys: list[ColumnName] | None = Field(
        default=None,
        min_length=1,
        description="Columns that identify a row. Absent: the keys of the target.",
        examples=[["payment_id"]],
    )

    def meaning(self) -> Meaning:
        """Return which table or topic it is, in the words of a sink's fingerprint."""
        raise NotImplementedError

    @property
    def place(self) -> str:
        """Where rows go, for people. Holds no secret."""
        raise NotImplementedError
