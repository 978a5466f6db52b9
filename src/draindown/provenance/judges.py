"""What tells the fates of records, by kind of table; a kind that is not here has rows of one record
each.
"""

from __future__ import annotations

from collections.abc import Mapping

from draindown.provenance.events import Historical
from draindown.provenance.judging import Judging
from draindown.provenance.merged import Merged

JUDGES: Mapping[str, Judging] = {"partial": Merged(), "history": Historical()}
