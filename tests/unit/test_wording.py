"""Texts are cut at blanks only, and what is cut says so."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from draindown.base.formatting import shortened, value_text
from draindown.runs.report import Expectation
from draindown.spark.checks.result import sample


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("short", "short"),
        ("two  blanks\nand", "two blanks and"),
        ("a word that is cut off", "a word that is ..."),
        ("/a/path/that/is/longer/than/all", "/a/path/that/is/longer/than/all"),
        ("/a/path/that/is/longer/than/all and more", "/a/path/that/is/longer/than/all ..."),
        ("", ""),
    ],
)
def test_a_text_is_cut_between_words(text: str, told: str) -> None:
    assert shortened(text, 20) == told


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (Decimal("12.50"), "12.50"),
        (
            {"id": "B-1", "net": Decimal("-0.00"), "n": None},
            '{"id": "B-1", "net": -0.00, "n": null}',
        ),
        ({"id": Decimal("12345678901234567890.10")}, '{"id": 12345678901234567890.10}'),
        ({"box": [{"x": Decimal("0E-18")}]}, '{"box": [{"x": 0.000000000000000000}]}'),
        ([Decimal("1.0"), "1.0"], '[1.0, "1.0"]'),
        ({"id": "12.50"}, '{"id": "12.50"}'),
        ("12.50", "12.50"),
    ],
)
def test_a_decimal_that_fails_is_shown_as_it_is(value: Any, shown: str) -> None:
    judged = Expectation(
        name="e", success=False, scope="changed", unexpected=1, judged=2, sample=sample([value])
    )
    again = Expectation.model_validate_json(judged.model_dump_json())
    assert judged.examples == again.examples == [value_text(again.sample[0])] == [shown]
