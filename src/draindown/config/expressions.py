"""Check without Spark what a SQL expression of a pipeline file may contain.

A rule must give the same answer each time its row is evaluated: on a retry, a replay, an audit.
Therefore functions of anything but the row are refused, and so is whatever runs code or hides text.
"""

from __future__ import annotations

import re

from draindown.config.generators import GENERATORS, instead_of_generator

TOKEN = re.compile(
    r"""(?P<string>[rR]'[^']*'|[rR]"[^"]*"|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
      | `(?P<quoted>(?:[^`]|``)*)`
      | (?P<comment>--|/\*)
      | (?P<word>[^\W\d]\w*)
      | (?P<open>['"`])
      | (?P<other>\d[\w.]*|[^\w\s])""",
    re.VERBOSE | re.DOTALL,
)
"""One token of an expression, by kind. A number, and every other character, is `other`."""


# Functions that Spark also accepts without parentheses, so the bare word is refused.
_BARE = {
    *("current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"),
    *("current_user", "session_user"),
}
_CALLS = _BARE | {
    *(
        "now",
        "curdate",
        "current_timezone",
        "current_catalog",
        "current_database",
        "current_schema",
        "user",
        "version",
    ),
    *(
        "rand",
        "random",
        "randn",
        "randstr",
        "uniform",
        "uuid",
        "shuffle",
        "monotonically_increasing_id",
    ),
    *("spark_partition_id", "input_file_name", "input_file_block_start", "input_file_block_length"),
}
_CLOCK_IF_EMPTY = {"unix_timestamp", "to_unix_timestamp"}
_CODE = {"reflect", "java_method", "try_reflect", "identifier"}


# Spark reads these texts as the current time wherever they meet a date or a timestamp, as in `at >
# 'now'`.
_CLOCK_TEXT = re.compile(
    r"[rR]?(['\"])\s*(?P<word>now|today|yesterday|tomorrow)(\s+(\w+/[\w/+-]+|UTC|GMT|Z|[+-]\d[\d:]*))?\s*\1",
    re.IGNORECASE,
)


# Spark reads these texts as a time of the current day. (It also reads T12 so, which is more often
# the name of a gate.)
_TIME_TEXT = re.compile(
    r"[rR]?(['\"])\s*T?\d{1,2}:\d{1,2}(:\d{1,2}(\.\d*)?\s*([A-Za-z][\w/+:-]*|[+-][\d:]+)?)?\s*\1"
)
_ROW_ALONE = "a rule may depend on the row alone; use arrived_at"
MAX_LENGTH = 10_000


_ROWS_ALONE = "a result may depend on its source rows alone"
BY_ORDER = frozenset(
    (
        *("first", "first_value", "last", "last_value", "any_value", "mode", "max_by", "min_by"),
        *("collect_list", "collect_set", "array_agg", "listagg", "string_agg", "histogram_numeric"),
        *(
            "percentile_approx",
            "approx_percentile",
            "approx_top_k",
            "approx_top_k_accumulate",
            "count_min_sketch",
        ),
        *("kll_sketch_agg_bigint", "kll_sketch_agg_double", "kll_sketch_agg_float"),
        *("kll_merge_agg_bigint", "kll_merge_agg_double", "kll_merge_agg_float"),
        *("hll_sketch_agg", "hll_union_agg", "approx_top_k_combine"),
    )
)
"""Aggregates whose result depends on the order in which rows arrive, ties included."""

_NO_JOIN = {"full", "right", "cross", "semi", "anti"}
_HOW = _NO_JOIN | {"left", "inner", "outer", "natural"}


def check_expression(text: str) -> str:
    """Return the expression unchanged. Raises ValueError that names what is refused, and why."""
    for at, token in enumerate(tokens := _tokens(text, "a SQL expression")):
        _check_text(token, _ROW_ALONE)
        _check_word(tokens, at, token, _ROW_ALONE)
        _check_scope(tokens, at, token, _ROW_ALONE)
    return text


def check_measure(text: str) -> str:
    """Return an aggregate unchanged. Raises ValueError that names what is refused, and why."""
    for at, token in enumerate(tokens := _tokens(text, "a SQL aggregate such as count(*)")):
        _check_text(token, _ROWS_ALONE)
        _check_word(tokens, at, token, _ROWS_ALONE)
        _check_scope(tokens, at, token, _ROWS_ALONE)
        _check_order(tokens, at, token)
    return text


def check_query(text: str) -> str:
    """Return a query unchanged. Raises ValueError that names what is refused, and why.

    What its plan may contain is judged by `spark/derived/query_plan.py`.
    """
    tokens = _tokens(text, "a SELECT over the source")
    if tokens[0].group().lower() not in ("select", "("):
        raise ValueError(f"begins with {tokens[0].group()!r}; write a SELECT over the source")
    for at, token in enumerate(tokens):
        _check_text(token, _ROWS_ALONE)
        _check_word(tokens, at, token, _ROWS_ALONE)
        _check_order(tokens, at, token)
        _check_join(tokens, at, token)
    return text


def _check_join(tokens: list[re.Match[str]], at: int, token: re.Match[str]) -> None:
    """Refuse joins whose rows depend on rows of other keys, or that keep no row of the left
    side.
    """
    if token.group().lower() != "join":
        return
    how = list[str]()
    for before in reversed(tokens[:at]):
        if (word := before.group().lower()) not in _HOW:
            break
        how.insert(0, word)
    if _NO_JOIN.intersection(how):
        form = " ".join(how).upper()
        raise ValueError(
            f"has a {form} JOIN: only INNER and LEFT joins that are equal on all keys work"
        )


def _tokens(text: str, wanted: str) -> list[re.Match[str]]:
    if not text.strip():
        raise ValueError(f"is empty; write {wanted}")
    if len(text) > MAX_LENGTH:
        raise ValueError(f"is longer than {MAX_LENGTH} characters")
    if "${" in text:
        # Spark would substitute a variable of its environment, even inside a string literal.
        raise ValueError(
            "contains '${', which Spark would replace; secrets and variables don't belong in expressions"
        )
    tokens = list(TOKEN.finditer(text))
    _check_form(tokens)
    return tokens


def check_code_free(text: str) -> str:
    """Return a condition of a suite unchanged. It may read the clock.

    Raises ValueError if the condition runs code or queries a table.
    """
    if "${" in text:
        raise ValueError("contains '${', which Spark would replace")
    tokens = list(TOKEN.finditer(text))
    _check_form(tokens)
    for at, token in enumerate(tokens):
        word = token[token.lastgroup].lower() if token.lastgroup in ("word", "quoted") else ""
        called = at + 1 < len(tokens) and tokens[at + 1].group() == "("
        if (word in _CODE and called) or word == "select":
            raise ValueError(f"{word} runs code or looks beyond the row")
    return text


def _check_form(tokens: list[re.Match[str]]) -> None:
    """Refuse tokens that could end, hide or break the expression."""
    depth = 0
    for token in tokens:
        match token.lastgroup, token.group():
            case "comment", mark:
                raise ValueError(f"contains a comment ({mark}); put comments in the YAML")
            case "open", mark:
                raise ValueError(f"has an unclosed {mark}")
            case "other", ";":
                raise ValueError("contains ';'; write one expression")
            case "other", "(":
                depth += 1
            case "other", ")":
                depth -= 1
        if depth < 0:
            break
    if depth:
        raise ValueError("has unbalanced parentheses")


def _check_text(token: re.Match[str], why: str) -> None:
    if token.lastgroup != "string":
        return
    text = token.group()
    if found := _CLOCK_TEXT.fullmatch(text):
        plain = f"for plain text write rlike '^{found['word']}$'"
        raise ValueError(f"{text} reads the clock where a time is expected: {why}; {plain}")
    if _TIME_TEXT.fullmatch(text):
        plain = "write its day too, or for plain text rlike '^12:30$'"
        raise ValueError(
            f"{text} is a time of the current day where a time is expected: {why}; {plain}"
        )


def _check_word(tokens: list[re.Match[str]], index: int, token: re.Match[str], why: str) -> None:
    """Refuse functions that the rows alone do not determine, those that make several rows or
    columns of one, and those that run code.
    """
    if token.lastgroup not in ("word", "quoted"):
        return
    word = token[token.lastgroup].lower()
    following = [other.group() for other in tokens[index + 1 : index + 3]]
    is_called = following[:1] == ["("]
    is_called_empty = following == ["(", ")"]
    is_field = _is_field(tokens, index)
    is_bare = token.lastgroup == "word" and not is_field
    if (is_called and word in _CALLS) or (is_bare and word in _BARE):
        rows = "the row" if why is _ROW_ALONE else "the rows"
        raise ValueError(f"{word}() is not determined by {rows}: {why}")
    if is_called_empty and word in _CLOCK_IF_EMPTY:
        raise ValueError(f"{word}() without arguments reads the clock: {why}")
    if is_called and word in GENERATORS and not is_field:
        raise ValueError(
            f"{word}() makes several rows or columns of one: {instead_of_generator(word)}"
        )
    if is_called and word in _CODE:
        raise ValueError(f"{word}() runs code or hides a name; expressions may not")


def _check_scope(tokens: list[re.Match[str]], at: int, token: re.Match[str], why: str) -> None:
    """Refuse subqueries and window functions, which look at other rows."""
    word, called = token.group().lower(), at + 1 < len(tokens) and tokens[at + 1].group() == "("
    looks = word == "select" or (word == "over" and called)
    if token.lastgroup == "word" and looks and not _is_field(tokens, at):
        raise ValueError(
            f"{word} looks beyond {'the row' if why is _ROW_ALONE else 'the rows of a window'}: {why}"
        )


def _check_order(tokens: list[re.Match[str]], at: int, token: re.Match[str]) -> None:
    """Refuse aggregates whose result depends on the order of rows."""
    if (
        token.lastgroup not in ("word", "quoted")
        or at + 1 >= len(tokens)
        or tokens[at + 1].group() != "("
    ):
        return
    word = token[token.lastgroup].lower()
    if word in BY_ORDER and not _is_field(tokens, at):
        instead = "max(struct(order, value)).value, in which ties are decided by value"
        raise ValueError(
            f"{word}() depends on the order in which rows come: {_ROWS_ALONE}; write {instead}"
        )


def _is_field(tokens: list[re.Match[str]], at: int) -> bool:
    return at > 0 and tokens[at - 1].group() == "."
