"""A rank describes itself: what it is after its first committed steps, and its recording.

Every live rank watches its first steps (:class:`~trainmover.sandbox.recorder.Recorder`), then says
``rank.described``: signature, fingerprint of its state after each of these steps, groups, stage.  From
these descriptions the standby service finds the roles; a rank that sits where a role is recorded writes
what it has kept, everybody else drops it.
"""

from __future__ import annotations

import hashlib
import logging
import threading

from trainmover.events.catalogue import RankDescribed, RecordingFailed, RecordingReady, RolesFound
from trainmover.sandbox.recorder import Recorder
from trainmover.sandbox.recording import Size
from trainmover.training.places import row_of
from trainmover.training.session import Session
from trainmover.training.state import TrackedState

log = logging.getLogger(__name__)


class Describer:
    """The description of one live rank.

    Args:
        session: the rank's.
        tracked: its state.
    """

    def __init__(self, session: Session, tracked: TrackedState) -> None:
        self._session, self._tracked = session, tracked
        env = session.env
        self._recorder = Recorder(env.warmup_steps, lambda: session.rank, env.recording_limit)
        self._state = hashlib.sha256()
        self._lock = threading.Lock()
        self._roles: RolesFound | None = None
        self._described = False
        session.communicator.tap = self._recorder
        session.when_roles(self.heard)

    def end_phase(self, committed: bool) -> bool:
        """A phase is over; the first one is what came before the first step. False: nothing more is seen."""
        if not committed:
            self._recorder.drop_phase()
            return True
        first = not self._recorder.phases_seen
        more = self._recorder.end_phase()
        if not first:
            self._state.update(self._tracked.fingerprint())
        if not more:
            self._session.communicator.tap = None
            self._say()
        return more

    def _say(self) -> None:
        env, infos = self._session.env, list(self._session.communicator.groups.values())
        sizes = [len(info.ranks) for info in infos]
        self._session.say(
            RankDescribed(
                machine=env.machine,
                incarnation=env.incarnation,
                slot=env.slot,
                rank=self._session.rank,
                generation=env.generation,
                signature=self._recorder.signature(sizes, self._tracked.schema()),
                state=self._state.hexdigest(),
                groups=tuple(row_of(info.wire, info.ranks) for info in infos),
                stage=self._recorder.stage,
                bytes=self._recorder.bytes,
                shares=self._tracked.seed is not None,
            )
        )
        with self._lock:
            self._described = True
        self._decide()

    def heard(self, event: RolesFound) -> None:
        """The roles are known (control thread)."""
        if event.generation == self._session.env.generation:
            with self._lock:
                self._roles = self._roles or event
            self._decide()

    def _decide(self) -> None:
        with self._lock:
            if self._roles is None or not self._described:
                return
            roles, self._described = self._roles, False
        seat = self._session.rank // self._session.env.ranks_per_machine
        role = next((role.name for role in roles.roles if role.representative == seat), None)
        if role is None:
            self._recorder.drop()
            return
        env = self._session.env
        base = env.recordings or str(env.run_dir / "recordings")
        url = f"{base.rstrip('/')}/g{env.generation}/{role}/slot-{env.slot}"
        self._recorder.write(url, lambda size: self._whole(url, size), self._failed)

    def _failed(self, reason: str) -> None:
        env = self._session.env
        self._session.say(
            RecordingFailed(
                machine=env.machine, slot=env.slot, generation=env.generation, reason=reason[:2000]
            )
        )

    def _whole(self, url: str, size: Size) -> None:
        env = self._session.env
        log.info(
            "rank %d: recorded %d results of %d bytes as %d contents in %d bytes (%s)",
            self._session.rank,
            size.tensors,
            size.raw,
            size.contents,
            size.stored,
            url,
        )
        self._session.say(
            RecordingReady(
                machine=env.machine,
                slot=env.slot,
                generation=env.generation,
                path=url,
                steps=env.warmup_steps,
                bytes=size.stored,
            )
        )
