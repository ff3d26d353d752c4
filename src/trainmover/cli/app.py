"""The command line put together; each command lives in a file of its own idea."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from trainmover import logs
from trainmover.cli import (
    chaos,
    credentials,
    events,
    monitor,
    operate,
    programs,
    run,
    simulate,
    submit,
    top,
)
from trainmover.version import __version__

SCRIPT_CONTEXT = {"allow_interspersed_args": False}
"""Options after SCRIPT are the script's own."""

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Replace a machine inside a running synchronous training job, bit for bit.",
)


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    verbose: Annotated[
        int,
        typer.Option("--verbose", "-v", count=True, show_default=False, help="More log lines; -vv: all."),
    ] = 0,
    log_level: Annotated[
        str | None,
        typer.Option(
            metavar="LEVEL",
            envvar=logs.LEVEL_VARIABLE,
            show_default=False,
            help=f"Least level of log lines: {', '.join(logs.LEVELS)}. Default: warning.",
        ),
    ] = None,
) -> None:
    """See the help of the app above; this only carries options that belong to no command."""
    level = "debug" if verbose > 1 else "info" if verbose else log_level
    if level is not None:
        logs.level_of(level)
        # What this program starts (services, machines, ranks) is as talkative as itself.
        os.environ[logs.LEVEL_VARIABLE] = level


TRAIN, WATCH, PARTS = "Train", "Watch and operate", "Parts of a cluster"
TROUBLE = "Make trouble"

app.command(rich_help_panel=TRAIN, context_settings=SCRIPT_CONTEXT)(run.run)
app.command(rich_help_panel=TRAIN)(run.demo)
app.command(rich_help_panel=WATCH)(operate.status)
app.command(rich_help_panel=WATCH)(operate.move)
app.command(rich_help_panel=WATCH)(monitor.monitor)
app.command(rich_help_panel=WATCH)(top.top)
app.add_typer(events.events, name="events", rich_help_panel=WATCH)
app.command(rich_help_panel=WATCH)(events.decode)
app.command(rich_help_panel=PARTS)(programs.service)
app.command(rich_help_panel=PARTS)(programs.machine)
app.command(rich_help_panel=PARTS, context_settings=SCRIPT_CONTEXT)(submit.submit)
app.command(rich_help_panel=PARTS)(submit.wait)
app.command(rich_help_panel=PARTS)(credentials.credentials)
app.command(rich_help_panel=TROUBLE, context_settings=SCRIPT_CONTEXT)(chaos.chaos)
app.command(rich_help_panel=TROUBLE)(simulate.simulate)
