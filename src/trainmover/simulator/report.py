"""Reports: what became of runs, in words; and of one that violated something, all there is to know.

What lives here: text.  What never lives here: checks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from trainmover.simulator.run import Outcome
from trainmover.simulator.setup import Setup


def command(setup: Setup, asked: dict[str, object] | None = None) -> str:
    """The command that runs this setup again.

    Args:
        setup: what was simulated.
        asked: the options that it was drawn with, by name; what was not given is drawn from the seed.
    """
    options = {name: value for name, value in (asked or {}).items() if value is not None}
    words = [f"--{name.replace('_', '-')} {value}" for name, value in options.items()]
    return " ".join(["trainmover simulate", f"--seed {setup.seed}", *words])


def violation_lines(outcome: Outcome, asked: dict[str, object] | None = None) -> list[str]:
    """What does not hold, when, after what, and how to see it again."""
    return [
        f"VIOLATION after {outcome.seconds:.3f} virtual seconds: {outcome.violation}",
        f"  {outcome.setup}",
        *(f"  {line}" for line in outcome.story),
        f"  again: {command(outcome.setup, asked)}",
    ]


def summary(outcomes: Iterable[Outcome]) -> str:
    """One line about many runs."""
    endings: Counter[str] = Counter()
    switches: Counter[str] = Counter()
    runs = faults = events = forgetful = 0
    seconds = 0.0
    for outcome in outcomes:
        runs += 1
        endings[outcome.ending.partition(":")[0]] += 1
        switches.update(outcome.switches)
        faults += outcome.faults
        events += outcome.events
        seconds += outcome.seconds
        forgetful += outcome.forgetful
    parts = ", ".join(f"{count} {ending}" for ending, count in sorted(endings.items()))
    kinds = ", ".join(f"{count} by {kind}" for kind, count in sorted(switches.items()))
    return (
        f"{runs} runs ({parts}), {faults} faults, {events} events in the logs, switches: {kinds or 'none'}; "
        f"{seconds / 3600:.1f} virtual hours; {forgetful} runs with a service that lost events in a stall"
    )


def line(outcome: Outcome) -> str:
    """One line about one run."""
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(outcome.switches.items()))
    return (
        f"{outcome.setup}: {outcome.ending} after {outcome.seconds:.0f} s and {outcome.steps} steps, "
        f"{outcome.events} events, switches: {kinds or 'none'}"
    )
