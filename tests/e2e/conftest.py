"""After the evening on call: a table of its actions by the truths that were looked at, with the
lies found.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.e2e.evening.truths import SURFACES


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print actions by surfaces: how many truths held, and which did not."""
    told = [
        (report.nodeid.partition("[")[2].rstrip("]"), properties)
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, ())
        if "looked" in (properties := dict(report.user_properties))
    ]
    if not told:
        return
    terminalreporter.section("evening: actions and truths")
    width = max(len(name) for name, _ in told)
    terminalreporter.line(" ".join([" " * width, *(f"{name:>10}" for name in SURFACES)]))
    for name, properties in told:
        cells = (_cell(properties, surface) for surface in SURFACES)
        terminalreporter.line(" ".join([f"{name:<{width}}", *(f"{cell:>10}" for cell in cells)]))
    looked = sum((Counter(properties["looked"]) for _, properties in told), Counter[str]())
    lies = sum(len(properties["lies"]) for _, properties in told)
    terminalreporter.line(f"{len(told)} actions, {looked.total()} truths, {lies} lies")


def _cell(properties: dict[str, Any], surface: str) -> str:
    lies = sum(1 for lie in properties["lies"] if lie.startswith(f"{surface}:"))
    number = properties["looked"].get(surface, 0)
    return f"{number}, {lies} bad" if lies else str(number or "-")
