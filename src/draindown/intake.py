"""Taking files in: list the source, judge each new file whole, park what can't be read, cut the rest into batches.

The cuts are written before any of them is read, so that a batch is the same files at every replay.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from itertools import batched  # type: ignore[attr-defined]
from pathlib import Path
from typing import Protocol, TypeVar

from draindown import known, parked
from draindown.known import KnownFile
from draindown.layout import FlowLayout
from draindown.listing import SourceFile, list_source, shown
from draindown.parked import Event
from draindown.report import Finding
from draindown.request import Request
from draindown.spec import FilesSource
from draindown.units import show_size
from draindown.verify import Skipped, Unreadable, Verified, sha256_of, verify

FILES_PER_CUT = 2000
"""Files of one batch at most: each costs the engine a task or part of one, however small it is."""

_FLOOR, _CEILING = 32 * 1024**2, 1024**3
_HEAP_SHARE = 8
_AT_ONCE = 512
_THREADS = 4
