"""Functions that return several rows, or several columns, for one row, each with what does
instead.
"""

from __future__ import annotations

GENERATORS = frozenset(
    (
        *(
            "explode",
            "explode_outer",
            "posexplode",
            "posexplode_outer",
            "inline",
            "inline_outer",
            "stack",
        ),
        *("json_tuple", "variant_explode", "variant_explode_outer"),
    )
)
OF_ARRAYS = (
    "use functions of the whole array (size, filter, exists, aggregate), or land "
    "each element as a record of its own"
)
_OF_GENERATORS = {
    "json_tuple": "write get_json_object() for each column",
    "stack": "write a UNION ALL with a SELECT for each row",
}


def instead_of_generator(name: str) -> str:
    """Return what to write in the place of a function of `GENERATORS`."""
    return _OF_GENERATORS.get(name, OF_ARRAYS)
