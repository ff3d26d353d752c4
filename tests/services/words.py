"""Events in few words: makers of what machines, ranks and services say, for tests of the services.

What lives here: one small function per event, with the values that most tests want, and the same read back
as short lines (:func:`brief`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from trainmover.events import catalogue as say
from trainmover.services.core import CancelTimer, Output, Probe, Say, SetTimer
from trainmover.services.described import Described
from trainmover.services.roles import find_roles

JOB = "job"


def submitted(machines: int = 3, slots: int = 1, standbys: int = 1, **more: Any) -> say.JobSubmitted:
    """A job's description."""
    return say.JobSubmitted(
        script="train.py",
        cwd="/",
        python="python",
        machines=machines,
        ranks_per_machine=slots,
        standbys=standbys,
        run_dir="/run",
        **more,
    )


def joined(machine: str, life: str = "a", slots: int = 1) -> say.MachineJoined:
    """A machine's arrival."""
    return say.MachineJoined(machine=machine, incarnation=life, host="127.0.0.1", slots=slots, pid=1)


def launch(
    machine: str, position: int, life: str = "a", generation: int = 1, n: int = 3
) -> say.MachineLaunch:
    """A machine's seat."""
    return say.MachineLaunch(
        machine=machine,
        incarnation=life,
        position=position,
        world_size=n,
        ranks_per_machine=1,
        generation=generation,
        record=True,
    )


def failed(machine: str, life: str = "a") -> say.MachineFailed:
    """A verdict."""
    return say.MachineFailed(machine=machine, incarnation=life, reason="test")


def left(machine: str, life: str = "a", reason: str = "stopped") -> say.MachineLeft:
    """A machine's departure."""
    return say.MachineLeft(machine=machine, incarnation=life, reason=reason)


def endpoint(machine: str, slot: int = 0, life: str = "a", role: str = "") -> say.Endpoint:
    """Where a rank listens."""
    return say.Endpoint(host="127.0.0.1", port=1000 + slot, life=f"{machine}-{life}-{slot}{role}")


def up(
    machine: str,
    slot: int = 0,
    life: str = "a",
    mode: Any = "live",
    generation: int = 1,
    role: str | None = None,
) -> say.RankStarted:
    """A rank's process is up; one in the sandbox in some role."""
    role = ("all" if mode == "sandbox" else "") if role is None else role
    return say.RankStarted(
        machine=machine,
        incarnation=life,
        slot=slot,
        mode=mode,
        generation=generation,
        pid=1,
        endpoint=endpoint(machine, slot, life, role),
        role=role,
    )


def described(
    machine: str,
    rank: int,
    *,
    slots: int = 1,
    generation: int = 1,
    kind: str = "x",
    state: str | None = None,
    stage: tuple[int, int] | None = None,
    groups: Iterable[say.GroupRow] = (),
    shares: bool = False,
) -> say.RankDescribed:
    """A rank says what it is: one of a kind, with the state of the others of its kind in its slot."""
    return say.RankDescribed(
        machine=machine,
        incarnation="a",
        slot=rank % slots,
        rank=rank,
        generation=generation,
        signature=f"{kind}-{rank % slots}",
        state=state or f"{kind}-{rank % slots}",
        stage=stage,
        groups=tuple(groups),
        shares=shares,
    )


def all_described(
    machines: Iterable[str] | int = 3,
    kinds: Iterable[str] = (),
    *,
    slots: int = 1,
    generation: int = 1,
    groups: Callable[[int], Iterable[say.GroupRow]] | None = None,
) -> list[say.RankDescribed]:
    """All ranks say what they are; ``kinds`` by seat, all of one without."""
    names = [f"m{seat}" for seat in range(machines)] if isinstance(machines, int) else list(machines)
    of = list(kinds) or ["x"] * len(names)
    world = say.GroupRow(name="default", first=0, count=len(names) * slots)
    return [
        described(
            name,
            seat * slots + slot,
            slots=slots,
            generation=generation,
            kind=of[seat],
            groups=(world,) if groups is None else groups(seat * slots + slot),
        )
        for seat, name in enumerate(names)
        for slot in range(slots)
    ]


def found(
    machines: int = 3, kinds: Iterable[str] = (), *, generation: int = 1, slots: int = 1
) -> say.RolesFound:
    """The roles that follow from the kinds of seats."""
    told = Described()
    for event in all_described(machines, kinds, slots=slots, generation=generation):
        told.note(event)
    return find_roles(told, machines, slots, generation)


def ready(machines: int = 3, *, slots: int = 1, generation: int = 1, epoch: int = 1) -> list[say.Event]:
    """Everything that must be known before a machine can be replaced: one role, recorded by m1."""
    return [
        started(generation, epoch),
        *all_described(machines, slots=slots, generation=generation),
        found(machines, generation=generation, slots=slots),
        *(recorded("m1", slot, generation) for slot in range(slots)),
    ]


def exited(
    machine: str,
    life: str = "a",
    *,
    mode: Any = "live",
    generation: int = 1,
    code: int | None = None,
    signal: int | None = None,
    error: str = "",
    slot: int = 0,
    role: str = "",
) -> say.RankExited:
    """A rank's process ended."""
    return say.RankExited(
        machine=machine,
        incarnation=life,
        slot=slot,
        mode=mode,
        generation=generation,
        pid=7,
        code=code,
        signal=signal,
        error=error,
        role=role,
    )


def broken(machine: str, peer: str, epoch: int = 1) -> say.LinkBroken:
    """A lost link."""
    return say.LinkBroken(
        epoch=epoch, rank=0, machine=machine, peer=1, peer_machine=peer, reason="connection reset"
    )


def probed(machine: str, answer: Any, life: str = "a") -> say.MachineProbed:
    """What became of a question to a machine."""
    return say.MachineProbed(machine=machine, incarnation=life, answer=answer)


def unreached(machine: str, peer: str, epoch: int = 2) -> say.LinkUnreached:
    """A link that is dialled in vain."""
    return say.LinkUnreached(
        epoch=epoch, rank=0, machine=machine, peer=1, peer_machine=peer, seconds=20.0, reason="timed out"
    )


def reached(machine: str, peer: str, epoch: int = 2) -> say.LinkReached:
    """It is there after all."""
    return say.LinkReached(epoch=epoch, rank=0, machine=machine, peer=1, peer_machine=peer)


def prepare(
    epoch: int, machines: Iterable[str], *, kind: Any = "repair", joiners: Iterable[str] = (), slots: int = 1
) -> say.SwitchPrepare:
    """All ranks are asked for the links of an epoch."""
    return say.SwitchPrepare(
        epoch=epoch,
        kind=kind,
        generation=1,
        incidents=("inc-1",),
        machines=tuple(machines),
        ranks_per_machine=slots,
        leavers=(),
        joiners=tuple(joiners),
        endpoints=(),
        limit_seconds=60.0,
    )


def started(generation: int = 1, epoch: int = 1) -> say.TrainingStarted:
    """The first committed step."""
    return say.TrainingStarted(generation=generation, epoch=epoch, step=1, groups={"default": (0, 1, 2)})


def recorded(machine: str, slot: int = 0, generation: int = 1) -> say.RecordingReady:
    """A recording is on disk."""
    return say.RecordingReady(
        machine=machine, slot=slot, generation=generation, path=f"/r/{machine}-{slot}", steps=2, bytes=1
    )


def parked(
    machine: str, slot: int = 0, life: str = "a", generation: int = 1, role: str = "all"
) -> say.StandbyParked:
    """A slot of a spare is warm in a role."""
    return say.StandbyParked(
        machine=machine,
        incarnation=life,
        slot=slot,
        generation=generation,
        shadow_steps=2,
        seconds={},
        role=role,
    )


def unrecorded(machine: str, slot: int = 0, generation: int = 1) -> say.RecordingFailed:
    """A recording will never be on disk."""
    return say.RecordingFailed(machine=machine, slot=slot, generation=generation, reason="too large")


def assigned(
    leaver: str,
    joiner: str,
    incident: str = "inc-1",
    kind: Any = "failure",
    generation: int = 1,
    role: str = "all",
) -> say.StandbyAssigned:
    """A spare takes a seat."""
    return say.StandbyAssigned(
        incident=incident,
        kind=kind,
        leaver=leaver,
        joiner=joiner,
        joiner_incarnation="a",
        generation=generation,
        role=role,
    )


def plan(
    epoch: int,
    machines: Iterable[str],
    *,
    kind: Any = "failure",
    base: int = 1,
    generation: int = 1,
    leavers: Iterable[str] = (),
    joiners: Iterable[str] = (),
    slots: int = 1,
) -> say.PlanReady:
    """A next layout."""
    machines = tuple(machines)
    return say.PlanReady(
        epoch=epoch,
        base_epoch=base,
        kind=kind,
        generation=generation,
        incidents=("inc-1",),
        machines=machines,
        ranks_per_machine=slots,
        leavers=tuple(leavers),
        joiners=tuple(joiners),
        endpoints=tuple(endpoint(m, s) for m in machines for s in range(slots)),
        links_added=(),
        links_dropped=(),
        links_total=3,
    )


def committed(
    epoch: int,
    machines: Iterable[str],
    *,
    kind: Any = "failure",
    leavers: Iterable[str] = (),
    joiners: Iterable[str] = (),
    generation: int = 1,
) -> say.SwitchCommitted:
    """An epoch came about."""
    return say.SwitchCommitted(
        epoch=epoch,
        kind=kind,
        incidents=("inc-1",),
        machines=tuple(machines),
        leavers=tuple(leavers),
        joiners=tuple(joiners),
        step=3,
        generation=generation,
    )


def prepared(epoch: int, rank: int, machine: str) -> say.SwitchPrepared:
    """A rank has its links."""
    return say.SwitchPrepared(
        epoch=epoch, rank=rank, machine=machine, seconds=0.1, links_made=1, links_kept=1
    )


def adopted(epoch: int, rank: int, machine: str, step: int = 3) -> say.SwitchAdopted:
    """A rank works in the epoch."""
    return say.SwitchAdopted(
        epoch=epoch,
        rank=rank,
        machine=machine,
        step=step,
        switch_seconds=0.1,
        copy_seconds=0.1,
        verify_seconds=0.1,
        bytes_received=1,
        bytes_sent=1,
    )


def finished(rank: int, machine: str, digest: str = "d") -> say.RankFinished:
    """A rank is done."""
    return say.RankFinished(machine=machine, slot=0, rank=rank, step=10, digest=digest)


def brief(outputs: Iterable[Output]) -> list[str]:
    """Outputs as short readable lines."""
    lines = []
    for output in outputs:
        match output:
            case Say(event=event):
                words = [event.type]
                for name in ("machine", "epoch", "leaver", "joiner", "machines"):
                    value = getattr(event, name, None)
                    if value is not None:
                        words.append(f"{name}={','.join(value) if isinstance(value, tuple) else value}")
                lines.append(" ".join(words))
            case SetTimer(name=name):
                lines.append(f"timer {name}")
            case CancelTimer(name=name):
                lines.append(f"no timer {name}")
            case Probe(machine=machine):
                lines.append(f"probe {machine}")
    return lines
