"""A table of a Postgres database as a sink: its address, its name, and how long the server may
take.
"""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import parse_qsl, urlsplit

from pydantic import AfterValidator, Field, WithJsonSchema

from draindown.base.digests import Meaning
from draindown.config.sink import EXACTLY_ONCE, SinkSpec
from draindown.config.units import Duration

_REFERENCE = re.compile(r"\$\{secret:[A-Za-z_][A-Za-z0-9_]*\}")
_NAME = r"[A-Za-z_][A-Za-z0-9_$]{0,62}"
_TABLE = rf"^({_NAME}\.)?{_NAME}$"
_SECRET_PARAMETERS = ("password", "sslpassword")


def _url(text: str) -> str:
    if _REFERENCE.fullmatch(text):
        return text
    plain = _REFERENCE.sub("_", text)
    try:
        parts = urlsplit(plain)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host, parts = None, urlsplit("")
    if parts.scheme not in ("postgresql", "postgres") or not host or len(parts.path) < 2:
        raise ValueError(
            "must be postgresql://USER:${secret:NAME}@HOST:PORT/DATABASE, or ${secret:NAME} as a whole"
        )
    given = [
        parts.password,
        *(value for name, value in parse_qsl(parts.query) if name in _SECRET_PARAMETERS),
    ]
    if any(word not in (None, "_") for word in given):
        raise ValueError(
            "has a password: write a reference such as ${secret:NAME}, a pipeline file holds no secret"
        )
    return text


def _table(name: str) -> str:
    if not re.fullmatch(_TABLE, name):
        raise ValueError(
            f"{name!r} is no table: NAME or SCHEMA.NAME of letters, digits, '_' and '$', case as it is"
        )
    return name


class PostgresSink(SinkSpec):
    """A table of a Postgres database. Each batch is one transaction, which records the batch
    too.
    """

    kind = "postgres"

    url: Annotated[
        str, AfterValidator(_url), WithJsonSchema({"type": "string", "minLength": 1})
    ] = Field(
        description="The database, as libpq writes it: TLS by parameters such as sslmode. Or a secret with all of it.",
        examples=[
            "postgresql://loader:${secret:ALERTS_PASSWORD}@db:5432/alerts?sslmode=verify-full"
        ],
    )
    table: Annotated[
        str, AfterValidator(_table), WithJsonSchema({"type": "string", "pattern": _TABLE})
    ] = Field(
        description="The table, with its schema unless the search path finds it. It must exist.",
        examples=["alerts", "public.alerts"],
    )
    timeout: Annotated[Duration, Field(ge=1, le=3600)] = Field(
        default=60,
        description="How long the server may take for one step of a batch, a wait for locks included.",
    )

    def meaning(self) -> Meaning:
        """Return which table it is, in the words of a sink's fingerprint."""
        return {"url": self.url, "table": self.table}

    @property
    def delivered(self) -> str:
        """How often a row may arrive: once, as a batch and its record are one transaction."""
        return EXACTLY_ONCE

    @property
    def place(self) -> str:
        """The table and its server, without user or password."""
        if _REFERENCE.fullmatch(self.url):
            return f"{self.table} at {self.url}"
        parts = urlsplit(_REFERENCE.sub("_", self.url))
        return f"{self.table} at {parts.hostname}:{parts.port or 5432}{parts.path}"
