"""Wards: what a rank keeps of other ranks' private values.

What lives here: the exchange in which every rank gives its private values (random generators, data position)
to its guardian and takes its ward's, and what is kept of ranks that are absent.  What never lives here: when
that happens (``boundary``), state that can be large (``mirror``).

A rank casts its ballot only when it holds its ward's values, so a committed step's private values are always
on two machines.  While seats are vacant, everybody keeps the private values of their ranks, as they were when
they were vacated: whoever is left can give them to the one who comes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from trainmover.ccl.engine import Steps
from trainmover.ccl.view import Group
from trainmover.training import handover, transfer
from trainmover.training.mirror import Mirrors
from trainmover.training.session import Session

log = logging.getLogger(__name__)

Run = Callable[[Callable[[], Steps]], dict[int, bytes]]
"""Runs a walk with all ranks to its end."""


class Wards:
    """The private values of others that this rank has; see the module.

    Args:
        session: the rank's.
        mirrors: whose word travels with the private values.
    """

    def __init__(self, session: Session, mirrors: Mirrors) -> None:
        self._session = session
        self._mirrors = mirrors
        self._values: dict[tuple[int, int], bytes] = {}
        self._kept: dict[int, bytes] = {}

    def exchange(self, group: Group, committed: int, private: bytes) -> Steps:
        """The walk that gives this rank's private values to its guardian and takes its ward's.

        Args:
            group: all ranks.
            committed: the number of steps that they are the values of.
            private: this rank's.
        """
        rank, order = self._session.rank, self._session.order
        assert order is not None, "private values are mirrored in an epoch"
        guardian, ward = order.layout.guardian(rank), order.layout.ward(rank)
        if guardian == rank:
            return
        sends = transfer.send_small(group, guardian, self._mirrors.said(private))
        data = yield from transfer.receive_small(group, ward)
        self._values[ward, committed] = self._mirrors.hear(data)
        yield sends

    def committed(self, committed: int) -> None:
        """A step is committed: values of before the last one are of no use any more."""
        self._values = {key: data for key, data in self._values.items() if key[1] >= committed - 1}

    def keep_of_absent(self, group: Group, committed: int, run: Run) -> None:
        """Everybody gets the private values of the absent ranks, from the first rank that has them."""
        absent = sorted(self._session.communicator.absent)
        if not absent:
            return
        mine = {rank: self._values.get((rank, committed)) or self._kept.get(rank, b"") for rank in absent}
        found = run(lambda: handover.keeping(group, absent, mine))
        for rank in absent:
            if not found[rank] and rank not in self._kept:
                log.warning(
                    "the private values of absent rank %d (random generators, data position) are lost; "
                    "whoever takes its seat gets those of one of its replicas",
                    rank,
                )
        self._kept |= found

    def settled(self) -> None:
        """Ranks that are there again keep their values themselves."""
        absent = self._session.communicator.absent
        self._kept = {rank: data for rank, data in self._kept.items() if rank in absent}

    @property
    def kept(self) -> dict[int, bytes]:
        """The private values of ranks that are absent, as they were when their seats were vacated."""
        return {rank: self._kept.get(rank, b"") for rank in self._session.communicator.absent}

    def of(self, rank: int, committed: int, mine: bytes) -> bytes:
        """The private values of a joiner's rank: those of a ward, or what was kept while it was absent.

        Args:
            rank: the joiner's.
            committed: the number of steps that they are the values of.
            mine: this rank's, for one whose own values are lost.
        """
        if rank in self._kept:
            return self._kept[rank] or mine
        return self._values.get((rank, committed), b"")
