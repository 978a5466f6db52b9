"""Pipeline files that break, new and scheduled ones; and input files that can't be read, change or
hold nothing.
"""

from __future__ import annotations

import gzip
import json

from tests.e2e.evening.scene import Scene, action

_INVALID = "invalid-spec"  # the task of a DAG whose file is broken
_LEAD = 30  # seconds in which Airflow must have read a broken file before its date comes

_NOVEL = """\
pipeline: novel
lake: {lake}
flows:
  f:
    source: {{files: {lake}/nothing/*, format: json}}
    cols: {{id: string not null}}
"""


def _errors(scene: Scene) -> int:
    return int(scene.shift.call("GET", "/api/v2/importErrors")["total_entries"])


def _others_live(scene: Scene) -> None:
    """No broken file concerns another pipeline."""
    scene.holds("page", "no import error", _errors(scene), 0)
    known = {row[0] for row in scene.shift.ask("select dag_id from dag where is_stale = 0")}
    scene.holds("page", "all other DAGs are there", set(scene.shift.pipelines) - known, set())


def _says(scene: Scene, name: str, word: str) -> None:
    """validate and the page name the file, the code and the word at fault."""
    said = scene.shift.draindown("validate", name)
    scene.holds("exit", "validate", said.code, 78)
    scene.holds("doctor", "validate names what is wrong", word in said.out + said.err)
    page = str(scene.shift.call("GET", "/draindown/", accept="html"))
    scene.holds("page", "it names what is wrong", word in page and f"{name}.yaml" in page)


def _fails(scene: Scene, run_id: str, word: str) -> None:
    scene.holds("exit", "the run is red", scene.shift.over(run_id), ["failed"])
    text = scene.shift.log(run_id, _INVALID)
    scene.holds("log", "the code", "invalid-pipeline" in text)
    scene.holds("log", "what is wrong", word in text)


@action("a new pipeline file is broken", "weeds")
def _new(scene: Scene) -> list[str]:
    path = scene.orders.yaml.with_name("novel.yaml")
    path.write_text(_NOVEL.format(lake=scene.orders.home / "novel"))
    try:
        found = "select count(*) from dag where dag_id = 'novel' and is_stale = 0"
        scene.shift.until(lambda: scene.shift.ask(found)[0][0] == 1, "a DAG of the broken file")
        _others_live(scene)
        _says(scene, "novel", "cols")
        run_id = str(
            scene.shift.call("POST", "/api/v2/dags/novel/dagRuns", {"logical_date": None})[
                "dag_run_id"
            ]
        )
        _fails(scene, run_id, "cols")
    finally:
        path.unlink()
    scene.shift.until(lambda: scene.shift.ask(found)[0][0] == 0, "its DAG gone")
    scene.orders.bring()
    return [scene.green()]


@action("the file of a scheduled pipeline breaks", "weeds")
def _scheduled(scene: Scene) -> list[str]:
    _, due = scene.schedule(_LEAD)
    whole = scene.orders.yaml.read_text()
    try:
        scene.orders.yaml.write_text(whole.replace("columns:", "cols:"))
        task = f"select count(*) from serialized_dag where dag_id = '{scene.name}' and data like '%{_INVALID}%'"
        scene.shift.until(lambda: scene.shift.ask(task)[0][0] > 0, "the broken file read")
        _others_live(scene)
        _says(scene, scene.name, "cols")
        scene.shift.until(lambda: due() is not None, "its date's run")
        _fails(scene, str(due()), "cols")
        _others_live(scene)
    finally:
        scene.orders.write_yaml(schedule=None)
    _mended(scene)
    scene.orders.bring()
    return [scene.green()]


def _mended(scene: Scene) -> None:
    newest = f"select data from serialized_dag where id = {_NEWEST.format(scene.name)}"
    scene.shift.until(lambda: _INVALID not in str(scene.shift.ask(newest)[0][0]), "it is mended")


_NEWEST = "(select id from serialized_dag where dag_id = '{}' order by last_updated desc limit 1)"


@action("a rule names a column that there is none of", "weeds")
def _bad_rule(scene: Scene) -> list[str]:
    whole = scene.orders.yaml.read_text()
    try:
        scene.orders.yaml.write_text(whole.replace("a is null or a >= 0", "aa is null or a >= 0"))
        said = scene.shift.draindown("validate", scene.name)
        scene.holds("exit", "validate", said.code, 78)
        scene.holds("doctor", "validate names the column", "aa" in said.out + said.err)
        scene.holds("exit", "run", scene.shift.draindown("run", scene.name).code, 78)
    finally:
        scene.orders.yaml.write_text(whole)
    scene.orders.bring()
    _mended(scene)
    return [scene.green()]


@action("a file that is cut short comes, and is given up", "weeds")
def _cut_short(scene: Scene) -> list[str]:
    name = _cut(scene)
    scene.orders.bring()
    first = scene.green()
    _parked(scene, first, name)
    path = str(scene.orders.landing / name)
    scene.does("input", "discard", scene.name, "--file", path, "--note", "theirs", "--yes")
    return [first]


@action("a file that is cut short comes, and is repaired in place", "weeds")
def _repaired(scene: Scene) -> list[str]:
    name = _cut(scene)
    first = scene.green()
    _parked(scene, first, name)
    path = scene.orders.landing / name
    path.write_bytes(
        gzip.compress(
            "".join(f'{{"id": "late{n}", "seq": 1, "a": {n}}}\n' for n in range(30)).encode()
        )
    )
    scene.does("input", "retry", scene.name, "--file", str(path), "--yes")
    second = scene.green()
    scene.holds(
        "ledger", "it was drained", sum(row["records"] for row in scene.now().of_run(second)), 30
    )
    return [first, second]


@action("a file changes after it was read, and comes again under a new name", "weeds")
def _changed(scene: Scene) -> list[str]:
    path = scene.orders.bring()[0]
    scene.green()
    line = json.dumps({"id": "changed", "seq": scene.orders.moment, "a": 1})
    scene.orders.rewrite(path, line)
    scene.orders.bring()
    first = scene.shift.press(scene.orders)
    scene.ends(first, state="failed")
    scene.holds("exit", "the drain fails at once", scene.shift.task(first, "drain"), ("failed", 1))
    scene.holds("ledger", "everything else was drained", len(scene.now().of_run(first)), 1)
    scene.holds("card", "the code", "input-changed" in scene.report("--run", first))
    _parked(scene, first, path.name)
    second = scene.green()  # the next run is green, and publishes what the first one drained
    scene.holds("doctor", "what was drained is published", scene.now().unpublished, False)
    scene.orders.moment += 1
    scene.orders.deliver(line, name=f"again-{scene.orders.moment:04}.json")
    words = ("--file", str(path), "--note", "delivered again", "--yes")
    scene.does("input", "discard", scene.name, *words)
    return [first, second, scene.green()]


def _cut(scene: Scene) -> str:
    """Deliver a gzip file without its second half; its name."""
    scene.orders.moment += 1
    whole = gzip.compress(
        "".join(json.dumps({"id": f"cut{n}", "seq": n}) + "\n" for n in range(500)).encode()
    )
    return scene.orders.drop_bytes(
        f"cut-{scene.orders.moment:04}.json.gz", whole[: len(whole) // 2]
    ).name


def _parked(scene: Scene, run_id: str, name: str) -> None:
    scene.holds("quarantine", "the file is kept out", name in scene.now().parked)
    text = scene.report("--run", run_id)
    scene.holds("card", "the file is named", name in text)
    listed = scene.shift.draindown("input", "list", scene.name).out
    scene.holds("doctor", "input list names the file", name in listed)


@action("a file without a byte and one of blank lines come", "weeds")
def _empty(scene: Scene) -> list[str]:
    scene.orders.moment += 1
    scene.orders.drop_bytes(f"empty-{scene.orders.moment:04}.json", b"")
    scene.orders.drop_bytes(
        f"blank-{scene.orders.moment:04}.json", b'\n\n{"id": "one", "seq": 1}\n\n'
    )
    return [scene.green()]


@action("quarantined rows are looked at, and given up", "weeds")
def _refused_rows(scene: Scene) -> list[str]:
    scene.orders.bring(bad=5)
    run_id = scene.green()
    listed = scene.does("quarantine", "list", scene.name, "--run", run_id) or {}
    found = [row["quarantine_id"] for row in listed.get("f", {}).get("rows", [])]
    own = [row["quarantine_id"] for row in scene.now().quarantine if row["run_id"] == run_id]
    scene.holds(
        "quarantine", "rows of the run that are listed", (len(own), sorted(found)), (5, sorted(own))
    )
    scene.does("quarantine", "discard", scene.name, "--run", run_id, "--note", "theirs", "--yes")
    return [run_id]
