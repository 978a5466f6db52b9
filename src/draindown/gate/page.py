"""The output of a check: `result.json` and a self-contained HTML page."""

from __future__ import annotations

from typing import Any, Literal

from jinja2 import Environment, StrictUndefined

from draindown.base.clock import now
from draindown.base.formatting import value_text
from draindown.lake.documents import Document
from draindown.lake.stores import store_of
from draindown.runs.report import CheckPart, Expectation
from draindown.runs.request import Request

Verdict = Literal["passed", "passed with waivers", "failed"]


def verdict(part: CheckPart) -> Verdict:
    """Return the verdict over all expectations in one word."""
    if any(e.refuses for e in part.expectations):
        return "failed"
    return "passed with waivers" if any(e.waived for e in part.expectations) else "passed"


def path(request: Request) -> str:
    """Return the path of the page of the request's start."""
    return f"{request.layout.validations(request.run_id, request.start)}/index.html"


def write(request: Request, part: CheckPart) -> str:
    """Write `result.json` and the page of one start of a check. Return the path of the page."""
    directory = request.layout.validations(request.run_id, request.start)
    content = _content(request, part)
    Document(f"{directory}/result.json").write(content)
    page = path(request)
    store_of(page).put(page, render(content).encode())
    return page


def _content(request: Request, part: CheckPart) -> dict[str, Any]:
    return {
        "verdict": verdict(part),
        "pipeline": request.spec.pipeline,
        "flow": request.flow,
        "table": request.layout.table_name,
        "run_id": request.run_id,
        "at": now().isoformat(timespec="seconds"),
        **part.model_dump(mode="json"),
    }


def render(content: dict[str, Any]) -> str:
    """Return the page as HTML. Values from data are escaped; nothing is loaded from elsewhere."""
    expectations = [Expectation.model_validate(e) for e in content["expectations"]]
    return _ENVIRONMENT.from_string(_PAGE).render(
        {
            **content,
            "expectations": sorted(expectations, key=_worst_first),
            "state": _state,
            "scopes": _SCOPES,
        }
    )


def _worst_first(e: Expectation) -> int:
    return ("failed", "waived", "warning", "info", "passed").index(_state(e))


def _state(e: Expectation) -> Literal["failed", "waived", "warning", "info", "passed"]:
    if e.success:
        return "passed"
    if e.waived:
        return "waived"
    return "failed" if e.severity == "critical" else e.severity


_SCOPES = {
    "changed": "changed rows",
    "table": "whole table",
    "open": "open rows",
    "input": "input not yet published",
}


_ENVIRONMENT = Environment(
    autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)
_ENVIRONMENT.filters["shown"] = value_text
_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{{ flow }}: {{ verdict }}</title>
<style>
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5b6675; --line: #d9dee5; --ground: #fff; --band: #f5f7f9;
  --failed: #b3261e; --waived: #8a5a00; --passed: #1b6e3c; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --soft: #9aa6b5; --line: #333d4a; --ground: #12171e;
  --band: #1a212a; --failed: #ff8a80; --waived: #f0b95b; --passed: #7ed39d; } }
body { margin: 0 auto; padding: 2rem 1.5rem 4rem; max-width: 76rem; color: var(--ink); background: var(--ground);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { margin: 0; font-size: 1.6rem; } h1 span { text-transform: capitalize; }
.failed { color: var(--failed); } .waived, .warning, .info { color: var(--waived); } .passed { color: var(--passed); }
.lead { margin: .3rem 0 1.4rem; font-size: 1.05rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1.2rem; margin: 0 0 1.8rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { padding: .5rem .8rem .5rem 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { color: var(--soft); font-weight: 600; white-space: nowrap; }
td.n, td.scope { white-space: nowrap; } .n { text-align: right; font-variant-numeric: tabular-nums; }
th:last-child, td:last-child { padding-right: 0; }
td.name { width: 100%; overflow-wrap: anywhere; min-width: 16rem; } td b { white-space: nowrap; }
.detail { color: var(--soft); overflow-wrap: anywhere; } .sample { margin-top: .35rem; }
code { font: .86em/1.5 ui-monospace, monospace; background: var(--band); padding: .05em .35em; border-radius: 3px;
  overflow-wrap: anywhere; } pre { background: var(--band); padding: .8rem; overflow-x: auto; }
ul { margin: 0; padding: 0; list-style: none; } summary { cursor: pointer; }
</style>
</head>
<body>
{% set kind = "failed" if verdict == "failed" else ("waived" if verdict != "passed" else "passed") %}
<h1 class="{{ kind }}"><span>{{ verdict }}</span>: {{ flow }}</h1>
<p class="lead">
{% if verdict == "failed" %}
Version {{ version }} was not published;
{{ "version %d stays published." % published_before if published_before is not none else "nothing was before." }}
{% else %}
Version {{ version }} passed: this run publishes it.
{% endif %}
</p>
<dl>
<dt>pipeline</dt><dd>{{ pipeline }}</dd>
<dt>table</dt><dd>{{ table }}</dd>
<dt>changed rows judged</dt><dd>{{ "{:,}".format(changed_rows) }}</dd>
<dt>run</dt><dd>{{ run_id }}</dd>
<dt>judged at</dt><dd>{{ at }}</dd>
</dl>
{% if expectations %}
<div class="wide"><table>
<thead><tr><th>verdict</th><th>expectation</th><th>scope</th><th class="n">judged</th>
<th class="n">unexpected</th></tr></thead>
<tbody>
{% for e in expectations %}
<tr>
<td><b class="{{ state(e) }}">{{ state(e) }}</b></td>
<td class="name">{{ e.name }}{% if e.detail %}<div class="detail">{{ e.detail }}</div>{% endif %}
{% if e.sample %}<ul class="sample">
{% for value in e.sample[:5] %}<li><code>{{ value | shown }}</code></li>
{% endfor %}</ul>
{% if e.sample | length > 5 %}<details><summary>{{ e.sample | length - 5 }} more</summary><ul>
{% for value in e.sample[5:] %}<li><code>{{ value | shown }}</code></li>
{% endfor %}</ul></details>{% endif %}{% endif %}</td>
<td class="scope">{{ scopes[e.scope] }}
{% if e.judged_by %}<div class="detail">by {{ e.judged_by }}</div>{% endif %}</td>
<td class="n">{{ "{:,}".format(e.judged) if e.judged else "" }}</td>
<td class="n">{{ "{:,}".format(e.unexpected) if e.judged else "" }}</td>
</tr>
{% endfor %}
</tbody></table></div>
{% else %}
<p>The flow has no expectations: nothing was judged.</p>
{% endif %}
{% if verdict == "failed" %}
<h2>What now</h2>
<p>Correct the rows at their source and deliver them again, or waive an expectation by name. Until then
every run of this gate fails.</p>
<pre>draindown gate show {{ pipeline }}/{{ flow }}
draindown gate waive {{ pipeline }}/{{ flow }} EXPECTATION --note TEXT</pre>
{% if expectations | selectattr("scope", "equalto", "input") | rejectattr("success") | rejectattr("waived") | list %}
<p>Refused rows are decided about once they are replayed under a corrected contract, or discarded:</p>
<pre>draindown quarantine list {{ pipeline }}/{{ flow }}
draindown quarantine release {{ pipeline }}/{{ flow }} --yes
draindown quarantine discard {{ pipeline }}/{{ flow }} --note TEXT --yes</pre>
{% endif %}
{% endif %}
</body>
</html>
"""
