"""What Spark says of an expression, as people read it."""

from __future__ import annotations

import pytest

from draindown.spark.contract.analysis import _reason

SAID = [
    (
        "\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'andd'. SQLSTATE: 42601 (line 1, pos 3)\n\n== SQL ==\na andd b",
        "Syntax error at or near 'andd'.",
    ),
    (
        '[DATATYPE_MISMATCH.BINARY_OP_DIFF_TYPES] Cannot resolve "(a > b)". SQLSTATE: 42K09\nJVM stacktrace:\nat x',
        'Cannot resolve "(a > b)".',
    ),
    ("a[0] is no column", "a[0] is no column"),
]


@pytest.mark.parametrize(("text", "reason"), SAID)
def test_a_reason_is_spark_s_sentence_without_its_codes(text: str, reason: str) -> None:
    assert _reason(Exception(text)) == reason
