"""Mutations are drawn by a seed, change what they say, and still parse."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

from scripts import mutations
from scripts.mutations import ROOMS, Mutation, drawn, found_in

SOURCE = Path(__file__).resolve().parents[2] / "src" / "draindown"
CODE = """\
def f(a, é, c):
    if a < len("é"):
        raise ValueError(
            a
        )
    if a:
        c()
    first(a)
    # between

    second(
        c
    )
    return é is not None and a in c
"""


def changed(kind: str) -> list[str]:
    return [one.applied(CODE) for one in found_in("f.py", CODE) if one.kind == kind]


def test_comparisons_are_turned_round() -> None:
    assert changed("< became >=") == [CODE.replace("a < len", "a >= len")]
    assert changed("is not became is") == [CODE.replace("é is not None", "é is None")]
    assert changed("in became not in") == [CODE.replace("a in c", "a not in c")]


def test_guards_are_removed_and_other_branches_stay() -> None:
    [without] = changed("guard removed")
    assert "ValueError" not in without and "        c()" in without
    assert ast.parse(without)


def test_calls_that_follow_each_other_change_places() -> None:
    [swapped] = changed("calls out of order")
    assert swapped.index("second(") < swapped.index("# between") < swapped.index("first(a)")
    assert ast.unparse(ast.parse(swapped)).count("first(a)") == 1


def test_a_seed_draws_the_same_thirty_in_ten_rooms_and_all_of_them_parse() -> None:
    chosen = drawn("seed", 30, SOURCE)
    assert chosen == drawn("seed", 30, SOURCE) != drawn("other", 30, SOURCE)
    assert Counter(str(Path(one.file).parent) for one in chosen) == dict.fromkeys(ROOMS, 3)
    assert len({(one.file, one.line, one.kind) for one in chosen}) == 30
    assert {"guard removed", "calls out of order"} < {one.kind for one in chosen}
    for one in chosen:
        before = (SOURCE / one.file).read_text()
        assert ast.dump(ast.parse(one.applied(before))) != ast.dump(ast.parse(before))


def test_stages_run_streams_that_name_the_module_first(tmp_path: Path) -> None:
    for name in ("near", "far"):
        (tmp_path / "tests" / "spark").mkdir(parents=True, exist_ok=True)
        (tmp_path / "tests" / "spark" / f"test_{name}.py").write_text(
            "import drain" if name == "near" else ""
        )
    near, far, airflow, _ = mutations.stages("spark/runs/drain.py", tmp_path)[2:]
    assert (near[-1], far[-1]) == ("tests/spark/test_near.py", "tests/spark/test_far.py")
    assert airflow[-1] == "tests/airflow"
    assert mutations.stages("spark/runs/drain.py", tmp_path)[:2] == [(), ()], "no test is there"


def test_what_survived_a_few_stages_is_tried_in_the_others(tmp_path: Path) -> None:
    one = Mutation("f.py", 1, "guard removed", 1, 1, "pass\n")
    kept = tmp_path / "seed.jsonl"
    assert mutations._open(mutations._read(kept), one, 1)
    kept.write_text(mutations._key(one)[:-1] + ', "found": null, "stages": 1}\n')
    assert [mutations._open(mutations._read(kept), one, through) for through in (1, 2)] == [
        False,
        True,
    ]
    kept.write_text(mutations._key(one)[:-1] + ', "found": "t.py::test_x", "stages": 1}\n')
    assert not mutations._open(mutations._read(kept), one, 5)
