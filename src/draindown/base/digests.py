"""Digests of what a part of a pipeline file means, in words of their own.

A digest is kept in a lake and compared years later. It is taken over a mapping whose words are
written down beside the fields that they stand for, never over the names of the fields: a key of the
pipeline file can be renamed, and no digest changes. What is None is left out, so that a setting
that comes later changes the digest only where a file says it.

`FORM` numbers these words. Another form makes every digest another one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

FORM = 1
Meaning = Mapping[str, Any]
"""Words to numbers, texts, booleans, None, and lists and mappings of them."""


def digest(meaning: Meaning) -> str:
    """Return the SHA-256 of a meaning in hex. The order of its words is of no account, that of a
    list is.

    Raises TypeError for a value that JSON doesn't have.
    """
    said = _said({"form": FORM, **meaning})
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _said(value: Any) -> Any:
    """Return a value without the words that say nothing."""
    if isinstance(value, Mapping):
        return {word: _said(one) for word, one in value.items() if one is not None}
    if isinstance(value, list | tuple):
        return [_said(one) for one in value]
    return value
