"""Known files in another directory raise a question before they would be appended a second time."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from draindown.base.clock import now
from draindown.base.errors import TerminalError
from draindown.cli.program import main
from draindown.config.models import PipelineSpec
from draindown.planning.plan import plan
from draindown.runs.request import Request
from draindown.sources import intake
from draindown.sources.batch_size import bound_for
from draindown.sources.files import catalog
from draindown.sources.files.source import Files
from draindown.sources.moves import Answer, Moves
from draindown.sources.registry import source_of


class Shop:
    """An append flow whose files lie in a directory below `home`, drained as far as its intake."""

    def __init__(
        self, home: Path, files: str = "a/*.json", target: Mapping[str, Any] | None = None
    ) -> None:
        self.home, self.target = home, dict(target or {})
        self.reads(files)
        self.write("a/1.json", "a/2.json")
        self.take()

    def reads(self, files: str) -> None:
        flow = {
            "source": {"files": str(self.home / files), "format": "json"},
            "columns": {"id": "int not null"},
        }
        content = {
            "pipeline": "p",
            "lake": str(self.home / "lake"),
            "flows": {"f": flow | {"target": self.target}},
        }
        path = self.home / "dags" / "pipelines" / "p.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
        self.spec = PipelineSpec.model_validate(content)

    def write(self, *names: str, text: str = "") -> None:
        for name in names:
            path = self.home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text or f'{{"id": {path.stem}}}\n')
            os.utime(path, (1_700_000_000, 1_700_000_000))

    def request(self) -> Request:
        return Request(spec=self.spec, flow="f", step="plan", run_id="r", root=str(self.home))

    @property
    def source(self) -> Files:
        found = source_of(self.request())
        assert isinstance(found, Files)
        return found

    def take(self) -> int:
        with closing(self.source.pin(1, now())) as pinning:
            pinning.take(bound_for(self.spec.flow("f").source, 1024**3))
            return pinning.taken.units

    def asks(self) -> tuple[str, str, int] | None:
        found = self.source.moved(self.spec.layout("f"), now())
        return found and (Path(found.before).name, Path(found.now).name, found.files)

    def answer(self, word: str) -> None:
        assert main(["--root", str(self.home), "input", "accept", "p", word, "--yes"]) == 0


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def _copied(shop: Shop) -> None:
    shutil.copytree(shop.home / "a", shop.home / "b")


def _moved(shop: Shop) -> None:
    (shop.home / "a").rename(shop.home / "b")


def _with_a_new_one(shop: Shop) -> None:
    _moved(shop)
    shop.write("b/3.json")


def _touched(shop: Shop) -> None:
    _moved(shop)
    os.utime(shop.home / "b/1.json")
    os.utime(shop.home / "b/2.json", (1, 1))


def _deeper(shop: Shop) -> None:
    (shop.home / "b").mkdir()
    (shop.home / "a").rename(shop.home / "b/a")


def _other_bytes(shop: Shop) -> None:
    shop.write("b/1.json", "b/2.json", text='{"id": 9}\n')


def _other_names(shop: Shop) -> None:
    shop.write("b/one.json", text='{"id": 1}\n')


def _empty(shop: Shop) -> None:
    (shop.home / "b").mkdir()
    (shop.home / "b/1.json").touch()


@pytest.mark.parametrize(
    ("deliver", "files", "wanted"),
    [
        (_copied, "b/*.json", ("a", "b", 2)),
        (_moved, "b/*.json", ("a", "b", 2)),
        (_with_a_new_one, "b/*.json", ("a", "b", 2)),
        (_touched, "b/*.json", ("a", "b", 2)),
        (_deeper, "b/a/*.json", ("a", "a", 2)),
        (_copied, "{b,c}/*.json", ("a", "b", 2)),
        (_copied, "*/*.json", None),
        (_other_bytes, "b/*.json", None),
        (_other_names, "b/*.json", None),
        (_empty, "b/*.json", None),
    ],
)
def test_only_known_bytes_from_another_fixed_directory_raise_the_question(
    shop: Shop, deliver: Callable[[Shop], None], files: str, wanted: tuple[str, str, int] | None
) -> None:
    """Equal files in directories below the fixed one are deliveries, as a glob over dated
    directories has them.
    """
    deliver(shop)
    shop.reads(files)
    assert shop.asks() == wanted


def test_a_plan_asks_for_a_table_that_appends_and_tells_for_one_with_keys(shop: Shop) -> None:
    _moved(shop)
    shop.reads("b/*.json")
    with pytest.raises(TerminalError) as error:
        plan(shop.request(), now())
    assert error.value.code == "files-moved" and len(error.value.next) == 2
    shop.target = {"keys": ["id"], "sequence_by": ["id"]}
    shop.reads("b/*.json")
    assert [one.kind for one in plan(shop.request(), now())[1]] == ["moved"]


def test_the_same_files_stay_known_and_are_found_in_their_new_directory(shop: Shop) -> None:
    _touched(shop)
    shop.write("b/3.json")
    shop.reads("b/*.json")
    shop.answer("--moved")
    assert shop.asks() is None and shop.take() == 1, "the new one"
    layout = shop.spec.layout("f")
    units = [unit for one in intake.slices(layout, 1) for unit in one.units]
    assert {unit.name for unit in units} == {
        f"{shop.home}/{name}" for name in ("a/1.json", "a/2.json", "b/3.json")
    }
    assert not shop.source.missing(units)
    assert shop.source.asked_again([f"{shop.home}/b/1.json", "b/3.json"], 1, 1) == [
        f"{shop.home}/a/1.json",
        f"{shop.home}/b/3.json",
    ]
    shop.write("b/1.json", text='{"id": 1000}\n')
    assert shop.take() == 0 and list(shop.source.missing(units)) == [f"{shop.home}/a/1.json"]
    assert plan(shop.request(), now())[0].parked == 1, (
        "other bytes of a known file are parked, not appended"
    )


def test_other_deliveries_are_taken_in_and_not_asked_about_again(shop: Shop) -> None:
    _copied(shop)
    shop.reads("b/*.json")
    shop.answer("--new")
    assert (
        shop.asks() is None
        and shop.take() == 2
        and len(catalog.outside(shop.spec.layout("f"), [])) == 4
    )


def test_without_an_answer_the_command_changes_nothing(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    _copied(shop)
    shop.reads("b/*.json")
    ask = ["--root", str(shop.home), "input", "accept", "p"]
    assert (
        main([*ask, "--json"]) == 0 and json.loads(capsys.readouterr().out)["moved"]["files"] == 2
    )
    assert main([*ask, "--moved"]) == 2 and shop.asks() is not None


def test_a_second_move_is_followed(shop: Shop) -> None:
    _with_a_new_one(shop)
    shop.reads("b/*.json")
    shop.answer("--moved")
    assert shop.take() == 1
    (shop.home / "b").rename(shop.home / "c")
    shop.reads("c/*.json")
    while shop.asks():
        shop.answer("--moved")
    assert shop.take() == 0
    units = [unit for one in intake.slices(shop.spec.layout("f"), 1) for unit in one.units]
    assert len(units) == 3 and not shop.source.missing(units)


def test_a_file_that_is_where_it_was_is_read_there(tmp_path: Path) -> None:
    moves = Moves([Answer(f"{tmp_path}/a", f"{tmp_path}/b", "", "me")])
    (tmp_path / "b").mkdir()
    (tmp_path / "b/x").touch()
    assert moves.place(f"{tmp_path}/a/x") == f"{tmp_path}/b/x" and moves.place("/z/x") == "/z/x"
    (tmp_path / "a").mkdir()
    (tmp_path / "a/x").touch()
    assert moves.place(f"{tmp_path}/a/x") == f"{tmp_path}/a/x"
