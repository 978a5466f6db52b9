"""Columns of a flow may be called what draindown calls columns of its own tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from draindown.audit import audit
from draindown.base.exits import Exit
from tests.landing import Landing


@pytest.mark.full
def test_keys_called_as_columns_of_the_tombstones_stay_deleted(
    landing: Callable[[Mapping[str, Any]], Landing],
) -> None:
    here = landing(
        {
            "columns": {
                "kind": "string not null",
                "batch": "int not null",
                "generation": "int not null",
                "gone": "boolean",
            },
            "target": {
                "keys": ["kind", "batch"],
                "sequence_by": ["generation"],
                "apply_as_deletes": "gone",
            },
        }
    )
    here.deliver(
        '{"kind": "a", "batch": 7, "generation": 1}', '{"kind": "a", "batch": 8, "generation": 1}'
    )
    here.deliver('{"kind": "a", "batch": 7, "generation": 3, "gone": true}')
    assert here.attempt_batches()[1] == Exit.DONE
    here.deliver('{"kind": "a", "batch": 7, "generation": 2}')
    assert here.attempt_batches()[1] == Exit.DONE
    assert [(row["kind"], row["batch"], row["generation"]) for row in here.rows()] == [("a", 8, 1)]
    (stone,) = here.tombstones()
    assert (stone["kind"], stone["batch"], stone["generation"]) == ("a", 7, 3)
    assert (stone["_kind"], stone["_batch"], stone["_generation"]) == ("drain", 0, 1)
    assert audit(here.spec, "f", root=here.home).residues == []
