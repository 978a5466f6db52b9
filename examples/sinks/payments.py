"""Payments of a shop, in files of JSON lines, and which of them are flagged: each payment by its newest state."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

COUNT = 2_000
TABLE = (
    "create table alerts (id text primary key, amount numeric(12,2), country text, at timestamptz)"
)
Alert = tuple[str, Decimal, str]
"""Payment, amount, country."""
_LIMIT = Decimal(10_000)


def write(directory: Path, day: int, count: int = COUNT) -> None:
    """Write a day's states of the first payments: a fourth of them are cleared that day."""
    directory.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(_state(number, day)) for number in range(count)]
    partial = directory / f".{day}.partial"
    partial.write_text("\n".join(lines) + "\n")
    partial.rename(directory / f"{day}.json")


def _state(number: int, day: int) -> dict[str, Any]:
    return {
        "payment_id": f"p{number}",
        "amount": f"{number * 700 % 20_000 + day}.50",
        "country": ("de", "fr")[number % 2],
        "card_country": ("de", "de", "fr")[number % 3],
        "state": ("open", "cleared")[(number + day) % 4 == 0],
        "at": f"2026-01-0{day}T00:00:00Z",
    }


def flagged(directory: Path) -> set[Alert]:
    """Return the payments that must be in the table of alerts, by what the files say."""
    newest: dict[str, dict[str, Any]] = {}
    for line in (
        line for path in sorted(directory.glob("*.json")) for line in path.read_text().splitlines()
    ):
        row = json.loads(line)
        if row["payment_id"] not in newest or newest[row["payment_id"]]["at"] < row["at"]:
            newest[row["payment_id"]] = row
    return {
        (row["payment_id"], Decimal(row["amount"]), row["country"])
        for row in newest.values()
        if row["state"] != "cleared"
        and (Decimal(row["amount"]) > _LIMIT or row["country"] != row["card_country"])
    }
