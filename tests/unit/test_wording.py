"""Texts are cut at blanks only, and what is cut says so."""

from __future__ import annotations

import pytest

from draindown.base.formatting import shortened


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
