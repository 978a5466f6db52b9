"""The command line. Results go to stdout, everything else to stderr; exit codes are those of
`base.exits`.
"""

from __future__ import annotations

import gc
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from draindown import __version__
from draindown.base import panics
from draindown.base.errors import DraindownError
from draindown.base.exits import Exit, exit_for
from draindown.cli import (
    auditing,
    authoring,
    drilling,
    history,
    inspect,
    recovery,
    renamed,
    running,
    why,
)
from draindown.cli.context import Setting, nearest_root
from draindown.cli.failures import named
from draindown.cli.gate import gate
from draindown.cli.inputs import input_
from draindown.cli.late import late
from draindown.cli.output import Output, by_path, global_options
from draindown.cli.plan import plan
from draindown.cli.quarantine import quarantine
from draindown.cli.sinks import sink
from draindown.cli.status import status

_EPILOG = """
Examples:

  draindown init && draindown run orders          a first pipeline, and its first run

  draindown plan flights                          what waits, and what a run would do

  draindown status                                all flows at a glance

  draindown audit flights                         recount everything from raw input

TARGET is PIPELINE or PIPELINE/FLOW. PIPELINE is a name from dags/pipelines/ or the path of a YAML file.

Exit codes: 0 done, 1 findings, 2 usage, 65 gate failed, 70 crash, 75 try again, 78 needs a person.
"""
COMMANDS: dict[str, Callable[..., None] | typer.Typer] = {
    "init": authoring.init,
    "validate": authoring.validate,
    "plan": plan,
    "run": running.run,
    "compact": running.compact,
    "status": status,
    "report": inspect.report,
    "as-of": history.as_of,
    "why": why.why,
    "doctor": inspect.doctor,
    "audit": auditing.audit,
    "drill": drilling.drill,
    "replay": recovery.replay,
    "reset": recovery.reset,
    "rebuild": recovery.rebuild,
    "gate": gate,
    "quarantine": quarantine,
    "input": input_,
    "late": late,
    "sink": sink,
}


class _Commands(TyperGroup):
    """Builds a command when it is asked for: all of them take 0.13 s, a fifteenth of a plan."""

    @property
    def commands(self) -> Any:
        """All commands by name, for what looks at every one."""
        return {name: self.get_command(None, name) for name in COMMANDS}

    @commands.setter
    def commands(self, given: Any) -> None:
        """Take nothing: the commands are those of the list."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names, in the order of the help."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; None if there is none of that name."""
        del ctx
        found = COMMANDS.get(cmd_name)
        if found is None:
            return None
        alone = typer.Typer(rich_markup_mode=None)
        if isinstance(found, typer.Typer):
            alone.add_typer(found, name=cmd_name)
        else:
            alone.command(cmd_name)(found)
        return typer.main.get_group(alone).commands[cmd_name]


app = typer.Typer(
    cls=_Commands,
    name="draindown",
    help="Incremental ETL for Airflow and Spark: drain a backlog into Delta tables, prove it, keep it fast.",
    epilog=_EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"draindown {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    ctx: typer.Context,
    root: Annotated[
        Path | None,
        typer.Option(
            help="Project root. Default: the nearest directory that has dags/pipelines.",
            file_okay=False,
        ),
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Environment of draindown.yaml. Default: DRAINDOWN_ENV."),
    ] = None,
    _wanted: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    options = []
    if root is not None:
        if not root.is_dir() and ctx.invoked_subcommand != "init":
            raise typer.BadParameter(f"there is no directory {root}", param_hint="--root")
        options.append(f"--root {shlex.quote(str(root))}")
    found = Setting((root or nearest_root(Path.cwd())).resolve(), os.environ)
    if env is not None:
        found = found.of_environment(env)
        options.append(f"--env {shlex.quote(env)}")
    global_options.set(" ".join(options))
    ctx.obj = found


_GARBAGE = 50_000
"""New objects after which Python looks for garbage. A command imports modules, whose objects stay:
at the default of 700, 8 % of the CPU time of a plan goes into looking.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code. A foreseen error shows no traceback."""
    panics.without_backtrace()
    gc.set_threshold(_GARBAGE)
    arguments = list(sys.argv[1:] if argv is None else argv)
    global_options.set("")
    by_path.set({})
    if sentence := renamed.told(arguments):
        typer.echo(sentence, err=True)
        return Exit.USAGE
    for stream in (sys.stdout, sys.stderr):
        # a terminal that can't encode a character must not fail the command
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        with panics.as_error():
            app(args=arguments, prog_name="draindown", standalone_mode=True)
    except SystemExit as ended:
        return (
            ended.code if isinstance(ended.code, int) else Exit.USAGE if ended.code else Exit.DONE
        )
    except DraindownError as error:
        Output("--json" in arguments).error(error)
        return exit_for(error)
    except Exception as error:  # noqa: BLE001 - the edge of the process
        told = named(error, f"draindown {shlex.join(arguments)}")
        Output("--json" in arguments).error(told)
        return exit_for(told)
    return Exit.DONE
