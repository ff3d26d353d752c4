"""Where checkpoints meet the course of a rank: going on from one at the start, making one at a boundary.

A boundary at which a checkpoint is due and the membership changes has it once the change is settled: all
ranks of the new epoch hold the same step then, the joiners, too.  So a machine that is lost after a step with
a checkpoint and before the next step costs no checkpoint, and there is always one after the last step.

A job started with ``--resume`` goes on from whatever is in its folder.  A generation that follows one in
which everything was lost goes on from the checkpoints of its own job, and begins from nothing without.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from trainmover.errors import JobError
from trainmover.events.catalogue import CheckpointLoaded
from trainmover.topology.layout import Layout
from trainmover.training.boundary import Boundary
from trainmover.training.session import Session
from trainmover.training.state import TrackedState

if TYPE_CHECKING:
    from trainmover.training.checkpoint import Checkpointer

log = logging.getLogger(__name__)


class Keeper:
    """The checkpoints of one rank.

    Args:
        session: who this rank is.
        tracked: its state.
        boundary: where it stands.

    Attributes:
        start: committed steps that this generation began with.
    """

    def __init__(self, session: Session, tracked: TrackedState, boundary: Boundary) -> None:
        self._session, self._tracked, self._boundary = session, tracked, boundary
        self.start = 0
        env = session.env
        self._shelf = None
        self._checkpointer: Checkpointer | None = None
        self._layout: Layout | None = None
        if not env.checkpoints:
            return
        # Only here: torch.distributed.checkpoint is no small thing to import.
        from trainmover.training.checkpoint import Checkpointer
        from trainmover.training.shelf import Shelf

        self._shelf = Shelf(env.checkpoints)
        if env.checkpoint_every:
            self._checkpointer = Checkpointer(
                self._shelf,
                every=env.checkpoint_every,
                keep=env.checkpoint_keep,
                job=env.job,
                generation=env.generation,
                machine=env.machine,
                say=session.say,
            )

    def go_on(self) -> None:
        """Before the first step: take the state of the newest checkpoint, if there is one to go on from.

        Raises:
            JobError: ``--resume`` was asked for and there is none, or it does not fit this job.
        """
        self._boundary.mine = self._tracked.private_values()
        env = self._session.env
        if self._shelf is None or not (env.resume or env.generation > 1):
            return
        from trainmover.training.restore import go_on

        loaded = go_on(
            self._shelf,
            self._tracked,
            self._session.rank,
            env.world_size,
            job=None if env.resume else env.job,
            agree=self._boundary.tell_all,
        )
        if not loaded.step:
            if env.resume:
                why = "; ".join(loaded.refused) or "there is none"
                raise JobError(f"no whole checkpoint in {self._shelf.url} to go on from: {why}")
            return
        log.info("rank %d goes on from %s", self._session.rank, loaded.path)
        self.start = self._boundary.committed = loaded.step
        self._boundary.mine = self._tracked.private_values() if loaded.private is None else loaded.private
        if self._session.rank == 0:
            self._session.say(
                CheckpointLoaded(
                    generation=env.generation, step=loaded.step, path=loaded.path, refused=loaded.refused
                )
            )

    def keep(self, total: int) -> None:
        """After a committed step: make a checkpoint if one is due."""
        step = self._boundary.committed
        if self._checkpointer is None or not self._checkpointer.due(step, total) or self._boundary.changing:
            return
        if step == total:
            # The last one is left out by nobody: whoever still writes the one before ends that first,
            # or the others would wait for this rank's part at the end.
            self.finish()
        self._take(self._checkpointer)

    def settled(self, total: int) -> None:
        """After a change of the membership: make the checkpoint that is due here, or wait for nobody lost."""
        lost, self._boundary.lost = self._boundary.lost, set()
        if self._checkpointer is None:
            return
        if self._checkpointer.due(self._boundary.committed, total):
            self._take(self._checkpointer)
        elif lost and self._layout is not None:
            self._checkpointer.lost({rank: self._layout.machine_of(rank) for rank in lost})

    def _take(self, checkpointer: Checkpointer) -> None:
        order = self._session.order
        self._layout = None if order is None else order.layout
        checkpointer.take(
            self._boundary.committed,
            self._session.rank,
            self._session.env.world_size,
            self._tracked,
            self._boundary.mine,
            self._session.engine.epoch,
            self._boundary.wards.kept,
        )

    def leave(self) -> None:
        """This rank's machine leaves the job in good order: end its part of the last checkpoint."""
        if self._checkpointer is not None:
            self._checkpointer.leave()

    def finish(self) -> None:
        """After the last step: let the last checkpoint be written."""
        if self._checkpointer is not None:
            self._checkpointer.finish(lambda: self._session.engine.broken)
