"""How files of each format are inspected before Spark sees them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, Protocol

from draindown.config.sources import FilesSource
from draindown.sources.files import json_documents
from draindown.sources.files.columnar import COLUMNAR, Measured, Unsupported, digest
from draindown.sources.files.container import Broken, FileBytes, Limits, refuse_binary, unpacked
from draindown.sources.files.encodings import header_text, refuse_wide
from draindown.sources.files.line_counter import LineCounter, LineTooLong
from draindown.sources.objects import SourceFile


class Inspector(Protocol):
    """What a file of one format must be to be read whole."""

    def inspect(self, file: SourceFile, source: FilesSource, data: FileBytes) -> dict[str, Any]:
        """Read the file once; return what is known of it, as fields of `Verified`.

        Raises Broken if the file itself is at fault; OSError with an errno, or MemoryError, if the
        machine is.
        """


class Lines:
    """Text files: UTF-8, plain or gzip. Of a delimited format quotes may hold line ends, and a
    header names cells.
    """

    def inspect(self, file: SourceFile, source: FilesSource, data: FileBytes) -> dict[str, Any]:
        """Count lines and blank lines, and find the header."""
        counter = LineCounter(
            limit=max(data.limits.line, source.max_record_bytes),
            dialect=source.dialect if source.form.delimited else None,
            header=source.has_header,
        )
        start = b""
        try:
            for chunk in unpacked(file.path, file.size, data):
                if not start and chunk:
                    _refuse_other(chunk, source.format)
                    start = chunk
                counter.feed(chunk)
            counter.finish()
        except LineTooLong as error:
            raise Broken("record-too-long", str(error)) from None
        header = None
        if counter.header is not None:
            header = header_text(counter.header, start.partition(counter.header)[2])
        return {
            "lines": counter.lines,
            "blank": counter.blank,
            "raw_bytes": counter.bytes,
            "header": header,
            "multiline": counter.multiline,
            "bom": counter.bom,
            "shape": digest(header or ""),
        }


class JsonDocuments:
    """JSON files that are an array of records, or objects over several lines; UTF-8, plain or
    gzip.
    """

    def inspect(self, file: SourceFile, source: FilesSource, data: FileBytes) -> dict[str, Any]:
        """Count records and bytes."""
        chunks = Counted(unpacked(file.path, file.size, data), source.format)
        limit = max(data.limits.line, source.max_record_bytes)
        found = sum(1 for _ in json_documents.records(chunks, limit))
        return {"records": found, "raw_bytes": chunks.bytes}


class Counted:
    """Chunks of a text file, and the bytes of those that were read. Raises Broken if it is another
    kind of file.
    """

    def __init__(self, chunks: Iterator[bytes], form: str) -> None:
        self._chunks, self._form, self.bytes = chunks, form, 0

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            if not self.bytes and chunk:
                _refuse_other(chunk, self._form)
            self.bytes += len(chunk)
            yield chunk


class Columnar:
    """Files with a schema of their own."""

    def inspect(self, file: SourceFile, source: FilesSource, data: FileBytes) -> dict[str, Any]:
        """Count rows and their bytes, and find the schema."""
        form = COLUMNAR[source.format]
        if not data.head:
            return {"records": 0, "raw_bytes": 0}
        if not data.head.startswith(form.magic):
            raise Broken("wrong-container", f"does not begin like {source.format}")
        found = Measured()
        try:
            for found in form.measured(file.path, data.limits.line):
                _refuse_bomb(file, found, data.limits)
            shape = digest(form.shape(file.path))
        except Unsupported as error:
            raise Broken(error.reason, str(error)) from None
        except (Broken, MemoryError):
            raise
        except (
            Exception
        ) as error:  # of a broken file pyarrow's readers raise whatever they stumble over
            # storage failed; a broken file has no errno
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise Broken(
                f"bad-{source.format}", f"{type(error).__name__}: {str(error)[:500]}"
            ) from error
        return {"records": found.rows, "raw_bytes": found.bytes, "shape": shape}


def _refuse_other(start: bytes, form: str) -> None:
    refuse_binary(start, form)
    refuse_wide(start)


def _refuse_bomb(file: SourceFile, found: Measured, limits: Limits) -> None:
    if found.longest > limits.line:
        raise Broken(
            "record-too-long", f"holds a value of {found.longest} bytes; at most {limits.line}"
        )
    if found.bytes > max(limits.unpacked, limits.times * file.size):
        raise Broken(
            "too-large",
            f"unpacks to more than {limits.times} times its size; deliver smaller files",
        )


INSPECTORS: MutableMapping[str, Inspector] = {
    "json": Lines(),
    "csv": Lines(),
    "text": Lines(),
    "parquet": Columnar(),
    "orc": Columnar(),
}


def inspector_of(source: FilesSource) -> Inspector:
    """Return what inspects the files of a source."""
    return _DOCUMENTS[source.format] if source.documents else INSPECTORS[source.format]


_DOCUMENTS: Mapping[str, Inspector] = {"json": JsonDocuments()}
