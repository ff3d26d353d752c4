"""``trainmover simulate``: the control plane in virtual time, with faults drawn from seeds."""

from __future__ import annotations

import os
import time
from typing import Annotated

import typer


def simulate(
    seed: Annotated[int, typer.Option(metavar="N", help="The first seed.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, metavar="COUNT", help="How many seeds from there on.")] = 1,
    machines: Annotated[
        int | None,
        typer.Option(min=1, max=65536, metavar="M", show_default=False, help="Seats. Default: drawn."),
    ] = None,
    standbys: Annotated[
        int | None, typer.Option(min=0, max=4096, metavar="S", show_default=False, help="Default: drawn.")
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option(min=0.001, metavar="H", show_default=False, help="Virtual hours of faults."),
    ] = None,
    roles: Annotated[
        int | None,
        typer.Option(min=1, metavar="R", show_default=False, help="Roles of machines. Default: drawn."),
    ] = None,
    on_exhausted: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY", show_default=False, help="hold, fail or shrink. Default: drawn, no shrink."
        ),
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY",
            show_default=False,
            help="mirror: no two ranks have the same state, and each is mirrored. Default: replicas.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, metavar="P", show_default=False, help="Processes. Default: one per processor."),
    ] = None,
) -> None:
    """Run the services against simulated machines and faults, and check what must always hold.

    Needs no bus, no GPU and no time: hours pass in seconds. A seed reproduces its run byte by byte.

    Exit codes: 0 everything held; 1 something did not, and the command that shows it again is printed.
    """
    from trainmover.simulator import draw, simulate_many
    from trainmover.simulator.report import line, summary, violation_lines

    if on_exhausted not in (None, "hold", "fail", "shrink"):
        raise typer.BadParameter("it is hold, fail or shrink", param_hint="--on-exhausted")
    if state not in (None, "mirror", "checkpoint"):
        raise typer.BadParameter("it is mirror or checkpoint", param_hint="--state")
    asked: dict[str, object] = {"machines": machines, "standbys": standbys, "hours": hours, "roles": roles}
    asked |= {"on_exhausted": on_exhausted, "state": state}
    setups = [
        draw(
            number,
            machines=machines,
            standbys=standbys,
            hours=hours,
            roles=roles,
            on_exhausted=on_exhausted,
            state=state,
        )
        for number in range(seed, seed + seeds)
    ]
    began = time.monotonic()
    outcomes = []
    for outcome in simulate_many(setups, workers or os.cpu_count() or 1):
        outcomes.append(outcome)
        if outcome.violation is not None:
            print("\n".join(violation_lines(outcome, dict(asked))), flush=True)
        elif seeds == 1:
            print(line(outcome))
    violated = sum(outcome.violation is not None for outcome in outcomes)
    seconds = time.monotonic() - began
    print(f"{summary(outcomes)}; {violated} violations, {len(outcomes) / seconds:.1f} seeds per second")
    raise typer.Exit(1 if violated else 0)
