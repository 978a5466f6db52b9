"""An evening on call, on a real Airflow: whatever is done or breaks, the tables are right and what
is told is true.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.evening import again, beside, deaths, files, judgement, triggers
from tests.e2e.evening.orders import Orders
from tests.e2e.evening.scene import ACTIONS, Action, perform
from tests.e2e.evening.shift import Shift

_LOG = logging.getLogger(__name__)
_ENTERED = (triggers, deaths, again, judgement, files, beside)  # these modules enter their actions


@pytest.fixture(scope="module")
def shift(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shift]:
    """Airflow over a pipeline for each kind of trouble, for the whole evening."""
    project = tmp_path_factory.mktemp("evening")
    names = dict.fromkeys(one.pipeline for one in ACTIONS.values())
    with Shift(*(Orders(project, name, first=not at) for at, name in enumerate(names))) as started:
        yield started


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "one",
    [
        pytest.param(one, id=name, marks=pytest.mark.long if one.short else pytest.mark.campaign)
        for name, one in ACTIONS.items()
    ],
)
def test_evening(shift: Shift, one: Action, record_property: Callable[[str, object], None]) -> None:
    tally = perform(one, shift, shift.pipelines[one.pipeline])
    _LOG.info("%s: %d truths; lies: %s", one.name, tally.looked.total(), tally.lies or "none")
    record_property("looked", dict(tally.looked))
    record_property("lies", tally.lies)
    assert not tally.lies, "\n".join(tally.lies)
