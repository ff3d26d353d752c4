"""Mirrors: state that no other rank has is kept once more, in the memory of another machine.

A rank whose state has no replica sends it to its guardian, the rank that keeps its private values too,
by *directed links of their own*, so that nothing of training waits behind it:

- beside the compute of step k+1 the *image*: the state after k steps;
- at the vote on step k+1, before any ballot is cast, the *changes* that make the state after k+1 of it
  (:mod:`trainmover.training.images`): the gradients as they are there, shared values, buffers.

So whoever commits step k+1 knows that every guardian can make the state after it, and after step k
too, should nobody commit: a machine that is lost costs no step.  A guardian holds two images: the last
whole one with the changes that followed, and one that arrives.  One that was torn by a loss is never used.

Who mirrors is told by ``roles.found``, which ranks hear at different times.  So each rank says in one byte
with its private values what will come from it until the next vote (:class:`Says`).  When a guardian is
replaced, its ward sends the new one its image before the epoch counts as adopted: from then on again, each
state is on two machines.

What a script changes of its tracked tensors after ``optimizer.step()`` by other means than a tracked
optimizer is not in the changes; a rank that sees that it does refuses to be mirrored, and says so.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from enum import IntFlag
from itertools import zip_longest

import msgpack
import torch

from trainmover.ccl.engine import Engine, Steps, Walk
from trainmover.ccl.tags import tag_of
from trainmover.ccl.transfer import Transfer
from trainmover.ccl.view import PairGroup, as_bytes
from trainmover.errors import LinkError
from trainmover.events.catalogue import MirrorFailed, MirrorWhole
from trainmover.topology.links import COLLECTIVE
from trainmover.training import images
from trainmover.training.images import Bytes, Held, Tensors
from trainmover.training.orders import Order
from trainmover.training.session import Session
from trainmover.training.state import TrackedState, tensor_bytes
from trainmover.training.transfer import MAX_SMALL_BYTES

log = logging.getLogger(__name__)

GROUP = "mirror"
"""Group name of the mirrors' links, and key of their walks."""

TAG = tag_of("mirror")
LIMIT_SECONDS = 3600.0
WATCHED_STEPS = 2
"""Mirrored steps in which a rank looks whether its state changes after the vote by other means."""


class Says(IntFlag):
    """What a rank says that it will send to its guardian until the next vote."""

    NOTHING = 0
    IMAGE = 1
    """Its image, beside the next step's compute."""
    CHANGES = 2
    """Changes, at the next vote."""
    NOW = 4
    """Its image, at once: the guardian is new."""


class Mirrors:
    """The mirrors of one rank: its own at its guardian, and its ward's here.

    Args:
        session: the rank's.
        tracked: its state.

    Attributes:
        says: what this rank says next.
        waited: seconds of the last vote that went to the mirrors.
    """

    def __init__(self, session: Session, tracked: TrackedState) -> None:
        self.session, self.tracked = session, tracked
        self.says = Says.NOTHING
        self.waited = 0.0
        self._heard = Says.NOTHING
        self._mine = self._wards = Says.NOTHING
        self._told = False
        self._guardian = -1
        self._refused = ""
        self._loose: set[int] = set()
        self._schema: tuple[int, str] = (-1, "")
        self._versions: list[int] = []
        self._watched = WATCHED_STEPS
        self._seen: list[tuple[int, torch.Tensor]] = []
        self._image: Held | None = None
        self._changes: Held | None = None
        self._free: list[torch.Tensor] = []
        self._whole = False
        self._sizes = (0, 0)

    # -- who and whether ---------------------------------------------------------------------------

    @property
    def _engine(self) -> Engine:
        return self.session.engine

    def places(self) -> tuple[int, int]:
        """Ranks of the guardian and of the ward; this rank itself where there is no other machine."""
        rank, order = self.session.rank, self.session.order
        if order is None:
            return rank, rank
        return order.layout.guardian(rank), order.layout.ward(rank)

    @property
    def wanted(self) -> bool:
        """This rank's state shall be mirrored."""
        rank = self.session.rank
        if self._refused or not (self._told or self.session.unreplicated(rank)):
            return False
        return self.session.env.state == "mirror" and self.places()[0] != rank

    def placed(self, order: Order) -> None:
        """This rank works in an epoch; where it is a joiner, its order says whether its state is mirrored."""
        told = order.told(self.session.rank)
        self._told = self._told or (told is not None and told.mirrored is not None)

    def _group(self) -> PairGroup:
        rank = self.session.rank
        ranks = tuple(sorted({rank, *self.places()}))
        return PairGroup(self._engine, GROUP, COLLECTIVE, ranks, ranks, ranks.index(rank))

    # -- what is said with the private values ------------------------------------------------------

    def announce(self, joiners: Collection[int] | None = None) -> None:
        """Decide what will be sent until the next vote.

        Args:
            joiners: at the start of an epoch the ranks that have just joined, of which a guardian has
                nothing yet; None at a vote.
        """
        self.says = Says.NOTHING
        if joiners is None:
            joiners, self._guardian = (), self.places()[0]
        if self.wanted:
            guardian, _ = self.places()
            new = guardian in joiners or guardian != self._guardian
            new = new and self.session.rank not in joiners
            self.says = Says.CHANGES | (Says.NOW if new else Says.IMAGE)

    def said(self, private: bytes) -> bytes:
        """Private values as they are sent: what is said goes before."""
        return bytes([self.says]) + private

    def hear(self, data: bytes) -> bytes:
        """The ward's private values, from what it has sent."""
        self._heard = Says(data[0])
        return data[1:]

    # -- the course of a step (main thread) --------------------------------------------------------

    def begin(self, committed: int) -> None:
        """A step begins: send the image of the state now, and receive the ward's, beside it."""
        self._mine, self._wards = self.says, self._heard
        if not (self._mine or self._wards):
            return
        tensors = self.tracked.tensors() if self._mine else []
        if self._mine:
            self._loose = images.loose(self.tracked)
            self._versions = _versions(tensors)
        out = self._own_image(committed, tensors) if Says.IMAGE in self._mine else None
        if out is None and Says.IMAGE not in self._wards:
            return
        wards = Says.IMAGE in self._wards
        walk = Walk(
            "mirror beside a step",
            lambda: self._exchanging(out, "image" if wards else "", point="mirror"),
            lambda _: None,
            lambda _: None,
            LIMIT_SECONDS,
        )
        self._engine.submit(GROUP, walk)

    def before_ballot(self, candidate: int) -> None:
        """Send what makes the state after this step; wait until the guardian and this rank have all of it.

        Raises:
            EpochBroken: the epoch broke meanwhile.
        """
        self.waited = 0.0
        if not (self._mine or self._wards):
            return
        began = time.monotonic()
        out = None
        if Says.CHANGES in self._mine:
            tensors = self.tracked.tensors()
            pairs = zip_longest(self._versions, _versions(tensors))
            moved = {index for index, (before, now) in enumerate(pairs) if before != now}
            at = sorted(moved | self._loose)
            out = images.changes(self.tracked, tensors, self.session.rank, candidate, at)
            self._sizes = (self._sizes[0], out.size)
            self._watch(tensors)
        receives = "changes" if Says.CHANGES in self._wards else ""
        # Behind the image: a walk of the same key begins when that one has ended.
        self._engine.run(GROUP, "mirror at the vote", lambda: self._exchanging(out, receives), LIMIT_SECONDS)
        self.waited = time.monotonic() - began

    def ended(self, committed: int) -> None:
        """The body of a committed step has ended."""
        self._look()
        if Says.CHANGES in self._mine and not self._whole and not self._refused:
            self._whole = True
            env = self.session.env
            self.session.say(
                MirrorWhole(
                    machine=env.machine,
                    rank=self.session.rank,
                    guardian=self.places()[0],
                    generation=env.generation,
                    step=committed,
                    image_bytes=self._sizes[0],
                    changes_bytes=self._sizes[1],
                )
            )

    def after_settling(self, committed: int) -> None:
        """A new guardian gets the image now.

        Raises:
            EpochBroken: the epoch broke meanwhile.
        """
        out = None
        if Says.NOW in self.says:
            self._loose = images.loose(self.tracked)
            out = self._own_image(committed, self.tracked.tensors())
        receives = "image" if Says.NOW in self._heard else ""
        if out is not None or receives:
            self._engine.run(
                GROUP, "mirror for a new guardian", lambda: self._exchanging(out, receives), LIMIT_SECONDS
            )
        self._guardian = self.places()[0]

    # -- what the ward's joiner gets ---------------------------------------------------------------

    def held(self, rank: int, committed: int) -> tuple[Held, Held | None] | None:
        """A rank's state after so many steps: an image, or one and the changes that make it; None: lost."""
        image, changes = self._image, self._changes
        if image is None or image.rank != rank:
            return None
        if image.step == committed:
            return image, None
        if changes is not None and changes.rank == rank and changes.step == committed == image.step + 1:
            return image, changes
        return None

    # -- does the state change by other means ------------------------------------------------------

    def _watch(self, tensors: Tensors) -> None:
        """Note tensors that no optimizer steps as they are voted on, in the first mirrored steps."""
        if self._watched:
            self._watched -= 1
            self._seen = [(index, tensors[index][1].detach().clone()) for index in sorted(self._loose)]

    def _look(self) -> None:
        seen, self._seen = self._seen, []
        tensors = self.tracked.tensors() if seen else []
        for index, before in seen:
            name, tensor = tensors[index]
            if bytes(tensor_bytes(tensor)) != bytes(tensor_bytes(before)):
                self._refuse(
                    f"{name} changes after optimizer.step(), where a mirror cannot follow: change it "
                    "before, or make checkpoints and run with --state checkpoint"
                )
                return

    def _refuse(self, reason: str) -> None:
        self._refused, self._watched = reason, 0
        env = self.session.env
        log.warning("rank %d: its state is not mirrored: %s", self.session.rank, reason)
        self.session.say(
            MirrorFailed(
                machine=env.machine, rank=self.session.rank, generation=env.generation, reason=reason
            )
        )

    # -- moving it (engine's thread) ---------------------------------------------------------------

    def _own_image(self, committed: int, tensors: Tensors) -> Bytes:
        if self._schema[0] != len(tensors):
            self._schema = (len(tensors), self.tracked.schema())
        rank, schema = self.session.rank, self._schema[1]
        out = images.image(self.tracked, tensors, rank, committed, self._loose, schema)
        self._sizes = (out.size, self._sizes[1])
        return out

    def _exchanging(self, out: Bytes | None, receives: str, point: str = "") -> Steps:
        """The walk of one exchange: send something to the guardian, receive something from the ward."""
        group = self._group()
        guardian, ward = (group.ranks.index(rank) for rank in self.places())
        sent: list[Transfer] = []
        if out is not None:
            head = len(out.head).to_bytes(8, "little")
            sent += [_send(group, guardian, memoryview(part)) for part in (head, out.head)]
            half = len(out.runs) // 2
            sent += [_send(group, guardian, run) for run in out.runs[:half]]
            if point:
                self.session.points.hit(point)
            sent += [_send(group, guardian, run) for run in out.runs[half:]]
        if receives:
            yield from self._receiving(group, ward, receives)
        yield sent

    def _receiving(self, group: PairGroup, ward: int, what: str) -> Steps:
        size = bytearray(8)
        yield [group.receive_bytes(ward, memoryview(size), TAG, size)]
        length = int.from_bytes(size, "little")
        if length > MAX_SMALL_BYTES:
            raise LinkError(f"rank {group.ranks[ward]} says that the head of its mirror has {length} bytes")
        head = bytearray(length)
        yield [group.receive_bytes(ward, memoryview(head), TAG, head)]
        told = msgpack.unpackb(head)
        total = sum(told["runs"])
        memory = self._memory(total)
        view, transfers, at = as_bytes(memory) if total else memoryview(b""), [], 0
        for run in told["runs"]:
            transfers.append(group.receive_bytes(ward, view[at : at + run], TAG, memory))
            at += run
        yield transfers
        self._keep(Held(told["rank"], told["step"], bytes(head), memory, total), what)

    def _keep(self, held: Held, what: str) -> None:
        """Something is whole: what it replaces gives its memory back."""
        old = []
        if what == "image":
            old, self._image = [self._image], held
            if self._changes is not None and self._changes.step <= held.step:
                old.append(self._changes)
                self._changes = None
        else:
            old, self._changes = [self._changes], held
        self._free += [item.memory for item in old if item is not None]
        self._free = sorted(self._free, key=torch.numel)[-2:]

    def _memory(self, size: int) -> torch.Tensor:
        """Memory of at least this size, of what was held before where some fits."""
        for index, memory in enumerate(self._free):
            if size <= memory.numel() <= size + size // 4 + 4096:
                return self._free.pop(index)
        return torch.empty(max(1, size), dtype=torch.uint8)


def _versions(tensors: Tensors) -> list[int]:
    """How often each tensor was changed, as far as that is counted."""
    return [0 if tensor.is_inference() else tensor._version for _, tensor in tensors]


def _send(group: PairGroup, member: int, view: memoryview) -> Transfer:
    return group.send_bytes(member, view, TAG, view)
