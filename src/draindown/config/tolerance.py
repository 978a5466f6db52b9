"""What a flow tolerates in its input: fields that the contract does not expect, and the share of
quarantined records.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from draindown.base.digests import Meaning
from draindown.config.base import Model, refuse
from draindown.config.units import Share


class Drift(Model):
    """The actions on fields that the contract does not name, and on fields that are missing."""

    new_columns: Literal["rescue", "add", "fail"] = Field(
        default="rescue",
        description="A field the contract doesn't name. rescue: kept in `_rescued_data`; add: becomes a string column; "
        "fail: the batch ends red before anything is written.",
        examples=["add"],
    )
    missing_columns: Literal["allow", "fail"] = Field(
        default="allow",
        description="A column that no record of a file has. allow: it is NULL, and `not null` judges each row; "
        "fail: the batch ends red before anything is written.",
        examples=["fail"],
    )

    def meaning(self) -> Meaning:
        """Return what the file says, in the words of a rebuild's digest; defaults are not said."""
        return {
            "new_columns": None if self.new_columns == "rescue" else self.new_columns,
            "missing_columns": None if self.missing_columns == "allow" else self.missing_columns,
        }


class QuarantineBounds(Model):
    """The largest share of records that may be refused, over source batches not yet published, from
    20 records on.

    If all records are refused, the check fails whatever the bounds and however few they are.
    """

    warn: Share = Field(
        default=0.01,
        description="From this share of quarantined records on, a run says so.",
        examples=["1%"],
    )
    fail: Share = Field(
        default=0.5,
        description="From this share on, the check fails as `quarantined_share`, until someone decides.",
        examples=["50%"],
    )

    @model_validator(mode="after")
    def _combination(self) -> QuarantineBounds:
        if {"warn", "fail"} <= self.model_fields_set and self.warn > self.fail:
            refuse(
                [
                    (
                        ("warn",),
                        "is more than fail: a share that fails would never have been warned of",
                    )
                ]
            )
        return self
