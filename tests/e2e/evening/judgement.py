"""What checks refuse: rows that fail the suite, a share of refused input; and what people do about
it.
"""

from __future__ import annotations

import json

from tests.e2e.evening.orders import EXPECTATION
from tests.e2e.evening.scene import Scene, action

_SHARE = "quarantined_share"
_BAD_LINES = 40


def _red(scene: Scene) -> str:
    """A run whose check refuses: the drain is green, nothing is published, and that is what
    everybody says.
    """
    version = scene.now().published.get("version")
    run_id = scene.shift.press(scene.orders)
    scene.ends(run_id, state="failed")
    scene.holds("exit", "the check fails at once", scene.shift.task(run_id, "check"), ("failed", 1))
    scene.holds("asset", "no event", scene.shift.asset_events(scene.orders, run_id), [])
    scene.holds("page", "published as before", scene.now().published.get("version"), version)
    text = scene.report("--run", run_id)
    scene.holds("card", "red", text.startswith("FAILED"))
    scene.holds("card", "nothing was published", "nothing was published" in text)
    scene.holds("log", "gate-failed", "gate-failed" in scene.shift.log(run_id, "check"))
    return run_id


def _doctor_names(scene: Scene, expectation: str) -> None:
    note = scene.health()["symptoms"].get("unpublished", {"found": "", "next": ""})
    scene.holds("doctor", "which expectation refused", expectation in note["found"])
    scene.holds("doctor", "what to type", f"draindown gate show {scene.name}" in note["next"])


@action("rows fail the gate, and are repaired by newer ones", "gated")
def _repaired(scene: Scene) -> list[str]:
    scene.orders.bring(large=3)
    first = _red(scene)
    second = _red(scene)  # nothing new came: still red
    _doctor_names(scene, EXPECTATION)
    repair(scene, 3)
    return [first, second, scene.green()]


def repair(scene: Scene, large: int) -> None:
    """Deliver newer rows in the place of those that the gate refuses."""
    seq = scene.orders.moment + 1
    lines = [json.dumps({"id": f"large{n}", "seq": seq, "a": 1}) for n in range(large)]
    scene.orders.deliver(*lines, name=f"repair-{seq:04}.json")
    scene.orders.moment = seq


@action("rows fail the gate, and are waived", "gated")
def _waived(scene: Scene) -> list[str]:
    scene.orders.bring(large=2)
    first = _red(scene)
    scene.does("gate", "waive", scene.name, EXPECTATION, "--note", "known")
    second = scene.green()
    text = scene.report("--run", second)
    scene.holds("card", "it says what was waived", "waived" in text and EXPECTATION in text)
    scene.does("gate", "waive", scene.name, EXPECTATION, "--undo")
    repair(scene, 2)
    return [first, second, scene.green()]


@action("rows fail the gate, and are taken out", "gated")
def _withdrawn(scene: Scene) -> list[str]:
    scene.orders.bring(large=2)
    first = _red(scene)
    plan = scene.shift.draindown("gate", "withdraw", scene.name, EXPECTATION)
    scene.holds("exit", "without --yes a plan only", plan.code, 2)
    scene.type("gate", "withdraw", scene.name, EXPECTATION, "--yes")
    scene.holds(
        "table", "they are gone", [row for row in scene.now().table if (row["a"] or 0) > 1000], []
    )
    scene.holds("quarantine", "they are kept", len(scene.now().withdrawn), 2)
    second = scene.green()
    repair(scene, 2)  # newer rows come in
    return [first, second, scene.green()]


def _all_bad(scene: Scene) -> str:
    scene.orders.moment += 1
    name = f"bad-{scene.orders.moment:04}.json"
    scene.orders.deliver(*["[1, 2"] * _BAD_LINES, name=name)
    run_id = _red(scene)
    told = scene.shift.xcom(scene.orders, run_id, "drain") or {}
    scene.holds("xcom", "the share", told.get("quarantined_share"), 1.0)
    scene.holds(
        "exit", "the drain itself is green", scene.shift.task(run_id, "drain")[0], "success"
    )
    text = scene.report("--run", run_id)
    scene.holds("card", "the verdict that refused", _SHARE in text)
    return run_id


@action("every row is refused, and that is waived", "shares")
def _share_waived(scene: Scene) -> list[str]:
    first = _all_bad(scene)
    _doctor_names(scene, _SHARE)
    scene.does("gate", "waive", scene.name, _SHARE, "--note", "a test of theirs")
    second = scene.green()
    scene.does("gate", "waive", scene.name, _SHARE, "--undo")
    return [first, second]


@action("every row is refused, and given up", "shares")
def _share_given_up(scene: Scene) -> list[str]:
    first = _all_bad(scene)
    scene.does("quarantine", "discard", scene.name, "--run", first, "--note", "theirs", "--yes")
    return [first, scene.green()]
