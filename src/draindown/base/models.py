"""The base class of frozen models that are written as JSON."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """An immutable model that ignores fields it does not know."""

    model_config = ConfigDict(frozen=True, extra="ignore")
