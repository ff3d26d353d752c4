"""``trainmover chaos``: real runs of a script in which everything goes wrong that may."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from trainmover.errors import ConfigError

if TYPE_CHECKING:
    from trainmover.chaos.campaign import Played
    from trainmover.chaos.plan import TroubleKind


def chaos(
    script: Annotated[
        Path, typer.Argument(metavar="SCRIPT", show_default=False, help="The training script; it must end.")
    ],
    args: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGS", show_default=False, help="Its own arguments."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="The first seed; each run has the next.")] = 0,
    minutes: Annotated[
        float, typer.Option(min=0.1, metavar="M", help="No run is begun after so many minutes.")
    ] = 5.0,
    runs: Annotated[
        int | None,
        typer.Option(min=1, metavar="R", show_default=False, help="Runs at most. Default: no limit."),
    ] = None,
    machines: Annotated[int, typer.Option(min=2, metavar="N", help="Machines that train.")] = 4,
    ranks_per_machine: Annotated[int, typer.Option(min=1, max=64, metavar="K", help="Ranks on each.")] = 1,
    standbys: Annotated[int, typer.Option(min=0, metavar="S", help="Warm spare machines to keep.")] = 2,
    on_exhausted: Annotated[
        str,
        typer.Option(
            metavar="POLICY",
            help="hold, or shrink (the script asks for its shares; needed without standbys).",
        ),
    ] = "hold",
    state: Annotated[
        str,
        typer.Option(metavar="POLICY", help="mirror, or checkpoint: nothing else has a lost shard."),
    ] = "mirror",
    kinds: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            show_default=False,
            help="Troubles that may be made besides faults of the ranks, joined by commas: service, bus, "
            "stall, disk, clock, cut, part, narrow; or none. Default: all that can be made here.",
        ),
    ] = None,
    limit: Annotated[float, typer.Option(min=10, metavar="SECONDS", help="What one run may take.")] = 180.0,
    summary: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", show_default=False, help="Write a summary.")
    ] = None,
    keep: Annotated[
        Path, typer.Option(metavar="DIR", help="Where what was not survived is kept to be looked into.")
    ] = Path("runs"),
) -> None:
    """Run a script undisturbed once, then again and again with random faults, and compare.

    After each run digest and losses must be those of the undisturbed run, nothing may be left, and the
    log must replay without a difference. Network faults (cut, part, narrow) and a full disk need root.

    Exit codes: 0 all runs were survived; 1 one was not, and the command that shows it again is printed.
    """
    from trainmover.chaos.campaign import Campaign, ChaosError, carry_out
    from trainmover.chaos.plan import UNDISTURBED, Exhausted, State

    campaign = Campaign(
        script=script,
        args=tuple(args or ()),
        seed=seed,
        minutes=minutes,
        runs=runs,
        machines=machines,
        ranks_per_machine=ranks_per_machine,
        standbys=standbys,
        kinds=_kinds(kinds),
        on_exhausted=cast("Exhausted", _policy("--on-exhausted", on_exhausted, get_args(Exhausted))),
        state=cast("State", _policy("--state", state, get_args(State))),
        limit=limit,
        keep=keep,
    )
    if not script.is_file():
        raise ConfigError(f"the script {script} does not exist")
    if not standbys and on_exhausted != "shrink":
        raise ConfigError("--standbys 0 needs --on-exhausted shrink: a job that holds would not end")

    def tell(played: Played) -> None:
        if played.seed == UNDISTURBED:
            print(
                f"undisturbed: {len(played.verdict.truth.losses)} steps in {played.seconds:.0f} s", flush=True
            )
            return
        hit = len(played.verdict.faults)
        how = "NOT SURVIVED" if played.verdict.complaints else f"survived {hit} faults"
        print(f"seed {played.seed} ({played.seconds:.0f} s): {how}: {played.plan}", flush=True)
        for complaint in played.verdict.complaints:
            print(f"  {complaint}")
        if played.kept is not None:
            print(f"  kept in {played.kept}", flush=True)

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        found = carry_out(campaign, tell)
    except ChaosError as error:
        print(error)
        raise typer.Exit(1) from None
    for kind, why in found.left_out.items():
        print(f"left out: {kind} ({why})")
    for command in found.commands.values():
        print(f"again: {command}")
    by_kind = ", ".join(f"{count} {kind}" for kind, count in sorted(found.faults.items()))
    print(
        f"{len(found.survived)} of {len(found.played)} runs survived, with "
        f"{sum(found.faults.values())} faults ({by_kind or 'none'}), in {found.seconds / 60:.1f} minutes"
    )
    if summary is not None:
        summary.parent.mkdir(parents=True, exist_ok=True)
        summary.write_text(json.dumps(found.as_json(), indent=2) + "\n", encoding="utf-8")
    raise typer.Exit(0 if len(found.survived) == len(found.played) else 1)


def _policy(option: str, word: str, known: tuple[str, ...]) -> str:
    if word not in known:
        raise ConfigError(f"{option}: {word} is none; here there are {' and '.join(known)}")
    return word


def _kinds(text: str | None) -> tuple[TroubleKind, ...]:
    from trainmover.chaos.plan import TroubleKind

    known = get_args(TroubleKind)
    if text is None:
        return known
    asked = [word.strip() for word in text.split(",") if word.strip() not in ("", "none")]
    if unknown := [word for word in asked if word not in known]:
        raise ConfigError(f"--kinds: {', '.join(unknown)} is none; there are {', '.join(known)}")
    return cast("tuple[TroubleKind, ...]", tuple(kind for kind in known if kind in asked))
