"""Listing a source: everything a glob names is either ready or reported, whatever its name and
nature.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest import mock

import pytest

from draindown.base.errors import TerminalError
from draindown.config.sources import FilesSource
from draindown.sources.files.listing import Listing, list_source, mtime_ns, shown

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def put(path: Path, *, age: float = 3600) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"{}\n")
    at = NOW.timestamp() - age
    os.utime(path, (at, at))
    return path


def listed(root: Path, files: str = "in/*.json", min_file_age: int = 0) -> Listing:
    return list_source(
        FilesSource(files=files, format="json", min_file_age=min_file_age), root, NOW
    )


def names(listing: Listing) -> list[str]:
    return [Path(file.path).name for file in listing.files]


def test_files_come_oldest_first_then_by_path(tmp_path: Path) -> None:
    for name, age in (("c", 10), ("a", 20), ("b", 10)):
        put(tmp_path / f"in/{name}.json", age=age)
    assert names(listed(tmp_path)) == ["a.json", "b.json", "c.json"]


@pytest.mark.parametrize("age", [8 * 86400, -30 * 86400, NOW.timestamp(), 0, 365 * 86400 * 20])
@pytest.mark.parametrize("min_file_age", [0, 60])
def test_no_mtime_keeps_a_file_out_for_good(tmp_path: Path, age: float, min_file_age: int) -> None:
    put(tmp_path / "in/a.json", age=age)
    listing = listed(tmp_path, min_file_age=min_file_age)
    assert names(listing) == ([] if abs(age) < min_file_age else ["a.json"])
    assert [f.kind for f in listing.findings] == (["unsettled"] if abs(age) < min_file_age else [])


def test_an_mtime_fits_the_bigint_of_a_table() -> None:
    for found, kept in (
        (2**63, 2**63 - 1),
        (2**63 - 1, 2**63 - 1),
        (-(2**63) - 1, -(2**63)),
        (-1, -1),
    ):
        assert mtime_ns(cast("os.stat_result", SimpleNamespace(st_mtime_ns=found))) == kept


@pytest.mark.parametrize(
    "name",
    [
        "a b.json",
        "a%2Fb.json",
        "[x]*?{y}.json",
        "ä日本.json",
        "n" * 250 + ".json",
        "..a.json"[2:],
        "a\\b.json",
        "-rf.json",
    ],
)
def test_odd_names_are_ready(tmp_path: Path, name: str) -> None:
    put(tmp_path / "in" / name)
    assert names(listed(tmp_path)) == [name]


def test_twins_in_composed_and_decomposed_unicode_are_two_files(tmp_path: Path) -> None:
    put(tmp_path / "in/\u00e9.json")
    put(tmp_path / "in/e\u0301.json")
    assert len(listed(tmp_path).files) == 2


@pytest.mark.parametrize(
    "name", [b"a:b.json", b"a\nb.json", b"\xff\xfe.json", b".a.json", b"_a.json", b"a\x1b[31m.json"]
)
def test_names_that_cannot_be_read_are_reported_and_printable(tmp_path: Path, name: bytes) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / os.fsdecode(name)).touch()
    listing = listed(tmp_path)
    (finding,) = listing.findings
    assert (listing.files, finding.kind) == ([], "ignored")
    assert finding.detail
    assert finding.next
    assert finding.subject.isprintable()


def test_a_directory_whose_name_is_no_text_stops_no_other_file(tmp_path: Path) -> None:
    put(tmp_path / "in/deep/good.json")
    odd = tmp_path / "in" / os.fsdecode(b"caf\xe9")
    odd.mkdir()
    (odd / "bad.json").touch()
    listing = listed(tmp_path, "in/**/*.json")
    assert names(listing) == ["good.json"]
    (finding,) = listing.findings
    assert (
        finding.kind == "ignored"
        and "not UTF-8" in finding.detail
        and finding.subject.isprintable()
    )


@pytest.mark.parametrize(
    "name", ["a.json._COPYING_", "a.json.tmp", "a.json~", "a.json.crc", "a.json.part"]
)
def test_unfinished_files_that_the_glob_names_are_reported(tmp_path: Path, name: str) -> None:
    put(tmp_path / "in" / name)
    listing = listed(tmp_path, "in/*")
    assert listing.files == []
    assert listing.findings[0].subject.endswith(name)


def test_things_that_are_no_files_are_reported(tmp_path: Path) -> None:
    put(tmp_path / "in/good.json")
    (tmp_path / "in/dir.json").mkdir()
    os.mkfifo(tmp_path / "in/pipe.json")
    (tmp_path / "in/dangling.json").symlink_to("nowhere")
    (tmp_path / "in/loop.json").symlink_to("loop.json")
    listing = listed(tmp_path)
    assert names(listing) == ["good.json"]
    assert {Path(f.subject).name for f in listing.findings} == {
        "dir.json",
        "pipe.json",
        "dangling.json",
        "loop.json",
    }


def test_a_directory_that_files_names_itself_is_to_be_named_with_what_is_in_it(
    tmp_path: Path,
) -> None:
    put(tmp_path / "in" / "a.json")
    (finding,) = listed(tmp_path, "in").findings
    assert (finding.kind, finding.next) == ("ignored", "name the files in it: end `files` in in/*")


def test_a_linked_file_is_read_under_the_name_of_the_link(tmp_path: Path) -> None:
    put(tmp_path / "in/.store/x.json")
    (tmp_path / "in/a.json").symlink_to(tmp_path / "in/.store/x.json")
    (tmp_path / "mount").symlink_to("in")  # what the author names may be a link itself
    assert [file.path for file in listed(tmp_path, "mount/*.json").files] == [
        str(tmp_path / "mount/a.json")
    ]


@pytest.mark.parametrize(
    "glob", ["in/*.json", "in/**", "in/a.json", "in/*/a.json", "in/d/*.json", "in/{d,e}/a.json"]
)
def test_a_link_that_leads_out_of_the_source_is_not_followed(tmp_path: Path, glob: str) -> None:
    put(tmp_path / "secret/a.json")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.json").symlink_to("../secret/a.json")
    (tmp_path / "in/d").symlink_to(tmp_path / "secret")
    if glob == "in/d/*.json":  # named up to the link: that is the author's word
        assert names(listed(tmp_path, glob)) == ["a.json"]
        return
    listing = listed(tmp_path, glob)
    assert listing.files == []
    assert {finding.kind for finding in listing.findings} == {"ignored"}


def test_two_stars_go_down_and_survive_loops(tmp_path: Path) -> None:
    put(tmp_path / "in/a.json", age=3)
    put(tmp_path / "in/x/y/b.json", age=2)
    put(tmp_path / "in/.hidden/c.json")
    (tmp_path / "in/x/loop").symlink_to(tmp_path / "in")
    listing = listed(tmp_path, "in/**/*.json")
    assert names(listing) == ["a.json", "b.json"]
    assert {Path(f.subject).name for f in listing.findings} == {".hidden", "loop"}
    assert names(listed(tmp_path, "in/**")) == ["a.json", "b.json"]


@pytest.mark.parametrize(
    ("glob", "expected"),
    [
        ("in/{a,b}*.json", ["a1.json", "b1.json"]),
        ("in/[ab]1.json", ["a1.json", "b1.json"]),
        ("in/[!a]1.json", ["b1.json", "c1.json"]),
        ("in/?1.json", ["a1.json", "b1.json", "c1.json"]),
        ("in/{*.json,a*}", ["a1.json", "b1.json", "c1.json"]),
        ("in/a1.json", ["a1.json"]),
        ("*/a1.json", ["a1.json"]),
        ("other/../in/a*.json", ["a1.json"]),
        ("in/none*.json", []),
    ],
)
def test_globs(tmp_path: Path, glob: str, expected: list[str]) -> None:
    for name in ("a1", "b1", "c1"):
        put(tmp_path / f"in/{name}.json")
    assert names(listed(tmp_path, glob)) == expected
    assert names(listed(Path("/"), f"{tmp_path}/{glob}")) == expected


def test_a_root_with_glob_characters_is_taken_as_it_is(tmp_path: Path) -> None:
    put(tmp_path / "{a,b}[1]*/in/x.json")
    assert names(listed(tmp_path / "{a,b}[1]*")) == ["x.json"]


@pytest.mark.parametrize("glob", ["gone/*.json", "gone/x.json", "file/*.json", "gone/*/x/*.json"])
def test_a_missing_source_is_an_error_that_names_the_directory(tmp_path: Path, glob: str) -> None:
    put(tmp_path / "file")
    with pytest.raises(TerminalError) as caught:
        listed(tmp_path, glob)
    assert caught.value.code == "source-missing"
    assert str(tmp_path / glob.split("/")[0]) in caught.value.found


def test_a_source_that_nobody_may_list_does_not_pass_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "in/a.json")
    monkeypatch.setattr(
        os, "scandir", mock.Mock(side_effect=PermissionError(13, "Permission denied"))
    )
    with pytest.raises(TerminalError) as caught:
        listed(tmp_path, "in/*.json")
    assert caught.value.code == "source-unreadable" and str(tmp_path / "in") in caught.value.found


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every directory")
def test_a_directory_that_cannot_be_listed_is_reported(tmp_path: Path) -> None:
    put(tmp_path / "in/x/a.json")
    put(tmp_path / "in/y/b.json")
    (tmp_path / "in/x").chmod(0)
    try:
        listing = listed(tmp_path, "in/*/*.json")
    finally:
        (tmp_path / "in/x").chmod(0o700)
    assert names(listing) == ["b.json"]
    assert listing.findings[0].subject == str(tmp_path / "in/x")


def test_many_findings_of_one_kind_are_counted_instead_of_listed(tmp_path: Path) -> None:
    for i in range(50):
        put(tmp_path / f"in/_{i}.json")
    findings = listed(tmp_path).findings
    assert len(findings) == 11
    assert findings[-1].subject == "40 more"


def test_shown_paths_carry_no_control_characters() -> None:
    assert shown("a\nb\x1b\udcff\u202eü") == "a\\nb\\x1b\\xff\\u202eü"
