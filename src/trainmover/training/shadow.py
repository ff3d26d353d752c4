"""The sandbox at work: shadow iterations, parking, and the moment when a standby takes its place.

While it warms up a process is the rank whose recording it hears: calls that cross the machine's border are
played, calls among the ranks of the machine really run, between the sandbox processes.  It then
parks at the boundary.  When its machine is given a place, it becomes the rank that sits there: its groups get
that rank's members and names, torch is told, and its calls go to the peers.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator

import torch.distributed as dist

from trainmover.events.catalogue import StandbyParked
from trainmover.sandbox.player import Player
from trainmover.training import promotion
from trainmover.training.residence import Residence
from trainmover.training.session import Session
from trainmover.training.state import TrackedState

log = logging.getLogger(__name__)


class Shadow:
    """The warm-up of one sandbox rank.

    Args:
        session: the rank's.
        tracked: its state, which is worth nothing until it is received.
        player: plays the recording.
    """

    def __init__(self, session: Session, tracked: TrackedState, player: Player) -> None:
        self.player = player
        self._session, self._tracked = session, tracked
        self._rank = session.rank
        self._found: promotion.Found | None = None
        self._first = 0.0
        communicator = session.communicator
        communicator.player, communicator.meet = player, session.meet_neighbours
        communicator.on_broken = "raise"
        session.on_place = self._take_place

    def positions(self, total: int) -> Iterator[int]:
        """The shadow iterations; call :meth:`end_phase` after each."""
        self.player.next_phase()
        yield from range(min(self.player.steps, total))

    def end_phase(self) -> None:
        """An iteration is over."""
        self.player.next_phase()
        self._first = self._first or time.monotonic()

    def park(self, residence: Residence, born: float, built: float) -> None:
        """Say that this rank is warm and what of its warm-up took how long, and wait for a place.

        The parts follow one another: process start and imports; building model and groups; compilation; the
        rest of the first iteration; the other iterations.

        Args:
            residence: gives back the memory of the tracked tensors, where that is wanted.
            born: when the session began, in seconds of the monotonic clock.
            built: when the first iteration could begin.
        """
        session, env, now = self._session, self._session.env, time.monotonic()
        self.player.close()
        first, compiling = (self._first or now) - built, compile_seconds()
        if dist.is_initialized():
            self._found = promotion.look()
        if env.park == "released":
            tensors = [tensor for _, tensor in self._tracked.tensors()]
            released = residence.release(tensors, self._tracked.gradients())
            log.info("sandbox rank %d gave back %.1f MiB", session.rank, released / 1024**2)
        session.say(
            StandbyParked(
                machine=env.machine,
                incarnation=env.incarnation,
                slot=env.slot,
                generation=env.generation,
                shadow_steps=self.player.steps,
                seconds={
                    "start": process_age() - (time.monotonic() - born),
                    "build": built - born,
                    "compile": compiling,
                    "first": max(0.0, first - compiling),
                    "shadow": now - built - first,
                },
                role=env.role,
            )
        )
        session.wait_for_epoch()

    def forget(self) -> None:
        """The process has its place for good: hold on to nothing of the script's."""
        self._found = None
        self._session.on_place = lambda _: None

    def _take_place(self, before: dict[str, tuple[int, ...]]) -> None:
        """This process is a rank of the job from now on; ``before``: its groups' ranks until now."""
        session, communicator = self._session, self._session.communicator
        communicator.player, communicator.on_broken = None, "swallow"
        os.environ["RANK"] = os.environ["ROLE_RANK"] = str(session.rank)
        os.environ["GROUP_RANK"] = str(session.rank // session.env.ranks_per_machine)
        if dist.is_initialized():
            promotion.follow(communicator, before, self._rank, found=self._found)
        self._rank = session.rank


def process_age() -> float:
    """Seconds since this process was started by the system."""
    with open("/proc/self/stat", encoding="utf-8") as file:
        ticks = int(file.read().rsplit(")", 1)[1].split()[19])
    with open("/proc/uptime", encoding="utf-8") as file:
        return float(file.read().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")


def compile_seconds() -> float:
    """Seconds that torch.compile has taken in this process; 0 where it was not used."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    times = getattr(dynamo, "compilation_time_metrics", {})
    return float(sum(times.get("_compile.compile_inner", ())))
