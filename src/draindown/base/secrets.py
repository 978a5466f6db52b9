"""Resolve `${secret:NAME}`. A secret is looked up where it is used, and nowhere else: it is in no
request or report.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from draindown.base.errors import TerminalError

VARIABLE = "DRAINDOWN_SECRET_"
"""Prefix of the environment variables that hold secrets."""
DIRECTORY = "DRAINDOWN_SECRETS"
"""Environment variable that names a directory with one file per secret."""
_SHORTEST = 4  # characters; a shorter one would be found everywhere
_REFERENCE = re.compile(r"\$\{secret:([A-Za-z_][A-Za-z0-9_]*)\}")


def names_in(text: str) -> list[str]:
    """Return the names of the secrets that a text refers to."""
    return _REFERENCE.findall(text)


def resolved(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the text with each reference replaced by its secret. Raises TerminalError
    `secret-missing`.
    """
    return _REFERENCE.sub(lambda found: _secret(found[1], environ), text)


def is_at_hand(name: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether a secret can be looked up in this environment."""
    try:
        _secret(name, environ)
    except TerminalError:
        return False
    return True


def redacted(text: str, secrets: Iterable[str]) -> str:
    """Return a text with `***` for each secret of at least four characters in it."""
    for secret in sorted(set(secrets), key=len, reverse=True):
        text = text.replace(secret, "***") if len(secret) >= _SHORTEST else text
    return text


def _secret(name: str, environ: Mapping[str, str]) -> str:
    variable = VARIABLE + name
    if environ.get(variable):
        return environ[variable]
    directory = environ.get(DIRECTORY)
    found = f"no environment variable {variable}" + (
        "" if directory else f", and {DIRECTORY} names no directory"
    )
    if directory:
        try:
            return (Path(directory) / name).read_text(encoding="utf-8").rstrip("\r\n")
        except OSError as error:
            found += f"; {Path(directory) / name}: {error.strerror}"
    raise TerminalError(
        "secret-missing",
        tried=f"look up the secret {name}",
        found=found,
        next=f"export {variable}=...   # in the environment of the worker; or there a file, or in Airflow the "
        f"connection draindown_{name}: docs/security.md",
    )
