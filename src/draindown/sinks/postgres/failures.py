"""What Postgres and its client say when something fails, as errors of draindown: who acts, and how."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING

from draindown.base.errors import DraindownError, TerminalError, TransientError

if TYPE_CHECKING:
    import psycopg

_LONGEST = 400
_KEY = re.compile(r"Key \((.*?)\)=\((.*?)\)")
_AGAIN = "draindown run   # the next run sends the batch again; Airflow's retry does by itself"
_UNCERTAIN = "nothing in the table, or the whole batch if the answer to its commit was lost; the next run finds out"
_TRANSIENT = {
    "08": "sink-unreachable",
    "40": "sink-unreachable",
    "53": "sink-full",
    "55": "sink-busy",
    "57": "sink-unreachable",
    "58": "sink-unreachable",
    "XX": "sink-unreachable",
}
_TIMED = {"57014": "sink-busy", "25P03": "sink-busy", "25006": "sink-unreachable"}
_TERMINAL = {
    "28000": ("sink-auth", "check the user and the secret's value"),
    "28P01": ("sink-auth", "check the user and the secret's value"),
    "3D000": ("sink-missing", "create the database, or correct `url`"),
    "3F000": ("sink-missing", "create the schema, or correct `table`"),
    "42501": ("sink-denied", "grant the rights that docs/sinks.md lists"),
    "42P01": ("sink-missing", "create the table, or correct `table`"),
    "42703": ("sink-columns", "draindown plan names what differs"),
    "42804": ("sink-columns", "draindown plan names what differs"),
    "42P10": ("sink-columns", "draindown plan names the index that is missing"),
}
_REFUSED = ("sink-refused", "draindown sink skip gives the row up; or change what it breaks")
# what a server says before there is a connection has no SQLSTATE
_WORDS = (
    (r"password|authentication|pg_hba\.conf|role \".*\" does not exist", "28000"),
    (r"database \".*\" does not exist", "3D000"),
    (r"too many (clients|connections)|connection slots|connection limit", "53300"),
    (r"permission denied|does not have CONNECT", "42501"),
)
_TLS = re.compile(r"certificate|does not support SSL|SSL error|root\.crt|sslmode", re.IGNORECASE)


def named(error: psycopg.Error, tried: str, secrets: Collection[str] = ()) -> DraindownError:
    """Return the error that a client's error stands for. Secrets are left out of its text."""
    found = _text(error, secrets)
    state = error.sqlstate or next((code for words, code in _WORDS if re.search(words, found)), None)
    if state is None:
        if _TLS.search(found):
            help = "draindown validate   # check sslmode and sslrootcert in `url`"
            return TerminalError("sink-tls", tried=tried, found=found, next=help)
        return TransientError("sink-unreachable", tried=tried, found=found, changed=_UNCERTAIN, next=_AGAIN)
    if (code := _TIMED.get(state) or _TRANSIENT.get(state[:2])) is not None:
        return TransientError(code, tried=tried, found=f"{found} ({state})", changed=_UNCERTAIN, next=_AGAIN)
    code, help = _TERMINAL.get(state, _REFUSED)
    return TerminalError(code, tried=tried, found=f"{found} ({state})", next=f"draindown plan   # {help}")


def silent(tried: str, seconds: float) -> TransientError:
    """Return the error of a server that doesn't answer."""
    found = f"no answer within {seconds:.0f} s"
    return TransientError("sink-unreachable", tried=tried, found=found, changed=_UNCERTAIN, next=_AGAIN)


def _text(error: psycopg.Error, secrets: Collection[str]) -> str:
    diag = error.diag
    main = diag.message_primary or str(error).strip() or type(error).__name__
    detail = diag.message_detail or ""
    key = _KEY.search(detail)
    parts = [main, f"key ({key[1]}) = ({key[2]})" if key else detail]
    parts += [f"constraint {diag.constraint_name}"] if diag.constraint_name else []
    text = "; ".join(part for part in parts if part)
    for secret in secrets:
        text = text.replace(secret, "***")
    return " ".join(text.split())[:_LONGEST]
