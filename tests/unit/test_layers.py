"""The layers contract names every room, so that no new one stands outside of it."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "draindown"


def test_every_module_belongs_to_one_layer() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    lines = next(contract["layers"] for contract in contracts if contract["id"] == "layers")
    layers = [name.strip() for line in lines for name in line.replace(":", "|").split("|")]
    modules = [
        ".".join(("draindown", *path.relative_to(SOURCE).with_suffix("").parts))
        for path in SOURCE.rglob("*.py")
        if path.name != "__init__.py" or path.parent.name in ("pages", "cli")
    ]
    of = {
        module: [layer for layer in layers if f"{module}.".startswith(f"{layer}.")]
        for module in modules
    }
    assert len(modules) > 100
    assert {module: found for module, found in of.items() if len(found) != 1} == {}
