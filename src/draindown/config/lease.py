"""The `lease` of a lake."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from draindown.config.base import Model, refuse
from draindown.config.units import Duration

LONGEST = 86_400
"""The longest time for which the holder of a shared lease may ask others to wait, in seconds."""


class LeaseSpec(Model):
    """How drivers exclude each other."""

    mode: Literal["local", "shared"] = Field(
        default="local",
        description="local: one host writes the lake; shared: several hosts mount it (NFS, EFS, CephFS, Lustre).",
        examples=["shared"],
    )
    duration: Annotated[Duration, Field(ge=5, le=LONGEST)] = Field(
        default=60,
        description="shared: a holder that shows no sign of life for this long is followed by the next driver.",
        examples=["60 seconds"],
    )

    @model_validator(mode="after")
    def _combination(self) -> LeaseSpec:
        default = type(self).model_fields["duration"].default
        if self.mode == "local" and self.duration != default:
            refuse(
                [
                    (
                        ("duration",),
                        "counts for mode shared only: a local lease ends with its process",
                    )
                ]
            )
        return self
