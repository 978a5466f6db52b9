"""Where the records of a JSON document end: by the drain's code, by the audit's, and by Python's
parser.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draindown.audit.raw import DocumentFile
from draindown.config.sources import FilesSource
from draindown.sources.files.container import Broken
from draindown.sources.files.inspection import Unreadable, Verified, verify
from draindown.sources.files.json_documents import records
from draindown.sources.objects import SourceFile

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.sampled_from(['[{,}]\\"', '"', "\\"]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


def split(text: bytes, size: int = 1024, limit: int = 10**6) -> list[bytes]:
    return list(records((text[at : at + size] for at in range(0, len(text), size)), limit))


@given(st.lists(VALUES), st.sampled_from([None, 2]), st.integers(1, 40), st.booleans())
def test_an_array_is_split_into_its_items_and_objects_into_themselves(
    tmp_path_factory: pytest.TempPathFactory,
    values: list[object],
    indent: int | None,
    size: int,
    bom: bool,
) -> None:
    path = tmp_path_factory.getbasetemp() / "document.json"
    objects = [value for value in values if isinstance(value, dict)]
    array = json.dumps(values, indent=indent)
    several = "\n".join(json.dumps(one, indent=indent, ensure_ascii=True) for one in objects)
    for text, wanted in ((array, values), (several, objects)):
        data = b"\xef\xbb\xbf" * bom + text.encode()
        found = split(data, size)
        assert [json.loads(one) for one in found] == wanted
        path.write_bytes(data)
        assert [record.raw for record in DocumentFile(str(path))] == found


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        *[
            ("[1, 2", "truncated"),
            ('{"a', "truncated"),
            ("[1,,2]", "bad-json"),
            ("[1,]", "bad-json"),
            ("x", "bad-json"),
        ],
        *[
            ('[{"a":1} {"b":2}]', "bad-json"),
            ("[{]}]", "bad-json"),
            ("[]x", "bad-json"),
            ("{} 1", "bad-json"),
        ],
        *[
            ('{"a":1}]', "bad-json"),
            (",", "bad-json"),
            ('[{"a": "' + "x" * 100 + '"}]', "record-too-long"),
        ],
    ],
)
@pytest.mark.parametrize("size", [1, 1000])
def test_a_document_that_does_not_close_is_broken(text: str, reason: str, size: int) -> None:
    with pytest.raises(Broken) as caught:
        split(text.encode(), size, 90)
    assert caught.value.args[0] == reason


def test_a_document_is_taken_in_by_its_records(tmp_path: Path) -> None:
    source = FilesSource(files="x", format="json", multiline=True)

    def looked_at(name: str, content: bytes) -> Verified | Unreadable:
        path = tmp_path / name
        path.write_bytes(content)
        found = verify(SourceFile(str(path), len(content), path.stat().st_mtime_ns), source)
        assert isinstance(found, Verified | Unreadable)
        return found

    array = b'[{"a": 1},\n {"a": 2}]'
    for name, content in (("a.json", array), ("a.json.gz", gzip.compress(array))):
        found = looked_at(name, content)
        assert isinstance(found, Verified) and (found.counted, found.lines, found.raw_bytes) == (
            2,
            None,
            len(array),
        )
    assert getattr(looked_at("torn.json", array[:-1]), "reason", None) == "truncated"
    assert getattr(looked_at("zip.json", b"PK\x03\x04"), "reason", None) == "wrong-container"
    assert getattr(looked_at("empty.json", b""), "counted", None) == 0
