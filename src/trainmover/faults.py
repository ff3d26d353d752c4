"""Fault specs: one readable line that says what goes wrong, where and when.

What lives here: the grammar of ``--fault`` and nothing else.  No torch, no asyncio, no process is
touched: the command line checks a spec with it before anything starts, the rank carries the spec
out at the exact step, and the driver wakes what a spec froze for some seconds.

    kill:machine=1,step=20            SIGKILL to every process of machine m1
    move:machine=m2,step=40           ask for a planned move of m2
    stop:machine=0,step=30,seconds=8  SIGSTOP to every process of m0, SIGCONT eight seconds later
    slow:machine=1,step=30,factor=3   each step of m1 takes three times as long from there on
    pause:machine=1,step=30,seconds=2 rank 0 of m1 stands still for two seconds, nothing else does
    kill:machine=1,step=20,at=voting  SIGKILL when m1's ballot on step 20 is out

``machine=1`` and ``machine=m1`` are the same machine.  ``step=N`` means: before the body of step
index N (counted from 0) runs, so two runs with the same specs can be compared.  ``at=`` names another
point, one of :data:`POINTS`, and ``slot=`` the rank of the machine that must be there (0 if not said).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, cast, get_args

from trainmover.errors import ConfigError

FaultKind = Literal["kill", "move", "stop", "slow", "pause"]

STEP_POINTS: dict[str, str] = {
    "step": "Before the step's body begins.",
    "mirror": "While its state is on its way to its guardian, where it is mirrored (no other rank has it).",
    "fetch": "In the data fetch: a batch is taken from the tracked data and not used yet.",
    "forward": "Before the first forward pass of a tracked module.",
    "collective": "In a collective call, after it was begun; nth=2: in the second one of the step.",
    "vote": "Before anything of the vote is sent.",
    "voting": (
        "In the vote: private values are mirrored, the ballot is out; from rank 0, who counts: the tally to "
        "one rank; nth=2: to two."
    ),
    "voted": "The step is committed, the optimizer has not begun.",
    "optimizer": "In the optimizer, after its first parameter group.",
    "stepped": "The step's body has ended, the next boundary has not begun.",
}
"""Where in its step a fault can hit. Where a step has no such point, the fault hits at its next one."""

SWITCH_POINTS: dict[str, str] = {
    "prepare": "A switch is asked for, no link is made yet.",
    "prepared": "All links are ready, and that was said.",
    "meeting": "In the meeting: it is told to one rank where this one stands.",
    "copy": "In the state copy, as sender or receiver, after a transfer was begun; nth=2: after two.",
    "copied": "The state is received (or sent), and not compared yet.",
    "joined": "The new epoch is adopted, its first step has not begun.",
}
"""Where in a switch a fault can hit: in the first one from its step on, on a standby in its first."""

POINTS: dict[str, str] = STEP_POINTS | SWITCH_POINTS
"""All points, in the order in which a rank passes them."""

COUNTED = ("collective", "voting", "copy")
"""Points that are passed several times: ``nth`` says which time is meant."""

WHERE = frozenset({"at", "nth", "slot"})

FIELDS: dict[FaultKind, tuple[frozenset[str], frozenset[str]]] = {
    "kill": (frozenset({"machine", "step"}), WHERE),
    "move": (frozenset({"machine", "step"}), frozenset()),
    "stop": (frozenset({"machine", "step"}), WHERE | {"seconds"}),
    "slow": (frozenset({"machine", "step", "factor"}), frozenset()),
    "pause": (frozenset({"machine", "step", "seconds"}), WHERE),
}
"""For each kind: the fields it needs and the fields it may have."""

EXAMPLES: dict[FaultKind, str] = {
    "kill": "kill:machine=1,step=20",
    "move": "move:machine=2,step=40",
    "stop": "stop:machine=0,step=30,seconds=8",
    "slow": "slow:machine=1,step=30,factor=3",
    "pause": "pause:machine=1,step=30,seconds=2",
}

MACHINE = re.compile(r"[A-Za-z0-9_\-]{1,64}")


@dataclass(frozen=True, slots=True)
class FaultSpec:
    """One fault. ``str()`` gives the canonical line, which parses back to an equal spec.

    Attributes:
        kind: what happens.
        machine: full machine name, for instance ``m1``.
        step: step index, 0 or more, in which the fault hits.
        factor: for ``slow``, how many times longer a step takes; more than 1.
        seconds: for ``stop``, after how many seconds the machine continues (None: never); for ``pause``,
            how long the thread that has reached the point stands still.
        at: the point that it hits at, one of :data:`POINTS`.
        nth: at which passing of the point, from 1; more than 1 only for those in :data:`COUNTED`.
        slot: the machine's rank that must be at the point; all of the machine is hit, but ``pause`` hits
            this rank only.
    """

    kind: FaultKind
    machine: str
    step: int
    factor: float | None = None
    seconds: float | None = None
    at: str = "step"
    nth: int = 1
    slot: int = 0

    def __str__(self) -> str:
        line = f"{self.kind}:machine={self.machine},step={self.step}"
        if self.factor is not None:
            line += f",factor={self.factor:g}"
        if self.seconds is not None:
            line += f",seconds={self.seconds:g}"
        if self.at != "step":
            line += f",at={self.at}"
        if self.nth != 1:
            line += f",nth={self.nth}"
        if self.slot:
            line += f",slot={self.slot}"
        return line

    @classmethod
    def parse(cls, text: str) -> FaultSpec:
        """Read one spec.

        Raises:
            ConfigError: naming the part that is wrong and showing a line that would be right.
        """
        head, colon, tail = text.strip().partition(":")
        if head not in get_args(FaultKind):
            kinds = ", ".join(get_args(FaultKind))
            raise ConfigError(
                f"fault {text!r}: {head!r} is not a kind of fault; the kinds are {kinds},"
                f" for instance {EXAMPLES['kill']}"
            )
        kind = cast("FaultKind", head)
        if not colon or not tail.strip():
            raise ConfigError(f"fault {text!r} names no machine and step; write it like {EXAMPLES[kind]}")
        values = _values(text, kind, tail)
        return cls(
            kind=kind,
            machine=_machine(text, values["machine"]),
            step=_step(text, values["step"]),
            factor=_number(text, values, "factor", above=1.0),
            seconds=_number(text, values, "seconds", above=0.0),
            at=_point(text, values.get("at", "step")),
            nth=_nth(text, values),
            slot=_slot(text, values.get("slot", "0")),
        )


def parse_faults(texts: Iterable[str]) -> tuple[FaultSpec, ...]:
    """Read many specs, each text holding one or several joined by ``;`` (empty parts are skipped)."""
    return tuple(FaultSpec.parse(part) for text in texts for part in text.split(";") if part.strip())


def faults_of(machine: str, texts: Iterable[str]) -> tuple[FaultSpec, ...]:
    """The specs that concern one machine, by step."""
    return tuple(sorted((s for s in parse_faults(texts) if s.machine == machine), key=lambda s: s.step))


def _values(text: str, kind: FaultKind, tail: str) -> dict[str, str]:
    needed, allowed = FIELDS[kind]
    values: dict[str, str] = {}
    for part in tail.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value:
            raise ConfigError(
                f"fault {text!r}: {part.strip()!r} is not key=value; write it like {EXAMPLES[kind]}"
            )
        if key not in needed | allowed:
            known = ", ".join(sorted(needed | allowed))
            raise ConfigError(f"fault {text!r}: {kind} has no field {key!r}; its fields are {known}")
        if key in values:
            raise ConfigError(f"fault {text!r} gives {key} twice")
        values[key] = value
    missing = sorted(needed - set(values))
    if missing:
        raise ConfigError(f"fault {text!r} lacks {' and '.join(missing)}; write it like {EXAMPLES[kind]}")
    return values


def _machine(text: str, value: str) -> str:
    if value.isascii() and value.isdigit():
        return f"m{int(value)}"
    if not MACHINE.fullmatch(value):
        raise ConfigError(
            f"fault {text!r}: {value!r} is not a machine; give its number or name, like 1 or m1"
        )
    return value


def _step(text: str, value: str) -> int:
    if not (value.isascii() and value.isdigit()):
        raise ConfigError(f"fault {text!r}: step {value!r} is not a step index; it is 0 or more")
    return int(value)


def _point(text: str, value: str) -> str:
    if value not in POINTS:
        raise ConfigError(f"fault {text!r}: {value!r} is not a point; the points are {', '.join(POINTS)}")
    return value


def _nth(text: str, values: dict[str, str]) -> int:
    value = values.get("nth", "1")
    if not (value.isascii() and value.isdigit() and int(value)):
        raise ConfigError(f"fault {text!r}: nth {value!r} is not a count; it is 1 or more")
    if "nth" in values and values.get("at") not in COUNTED:
        raise ConfigError(f"fault {text!r}: nth goes with {' or '.join(f'at={point}' for point in COUNTED)}")
    return int(value)


def _slot(text: str, value: str) -> int:
    if not (value.isascii() and value.isdigit()):
        raise ConfigError(f"fault {text!r}: slot {value!r} is not a slot; it is 0 or more")
    return int(value)


def _number(text: str, values: dict[str, str], key: str, *, above: float) -> float | None:
    if key not in values:
        return None
    try:
        number = float(values[key])
    except ValueError:
        number = float("nan")
    if not above < number < float("inf"):
        raise ConfigError(f"fault {text!r}: {key} {values[key]!r} is not a number above {above:g}")
    return number
