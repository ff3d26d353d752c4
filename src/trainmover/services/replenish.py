"""Replenishing: when one more spare machine is asked for.

What lives here: how many spares were used up, asked for and lost in a row, and what follows for the
next request.  What never lives here: the spares themselves (``standby``).

After a promotion or a loss a fresh spare is asked for, so that the job's number of standbys stays
true; after :data:`HOPELESS` machines in a row that were lost before they were of any use (as a spare:
parked in a role; as a first member: a step), no more is.

Before the first launch it takes members, too: a machine that is lost then leaves too few to begin.
"""

from __future__ import annotations

from trainmover.events.catalogue import StandbyReplenish
from trainmover.services.roster import Roster

HOPELESS = 3
"""Machines lost in a row without having been of use, after which no more is asked for."""


class Replenishing:
    """Counts what was used up and what was asked for; see the module.

    Attributes:
        unanswered: requests after which no machine has joined yet.
        lost_in_a_row: machines that were lost without having been of use.
    """

    def __init__(self, roster: Roster) -> None:
        self.unanswered = 0
        self._roster = roster
        self._ordinal = 0
        self._used_up = False
        self.lost_in_a_row = 0

    @property
    def hopeless(self) -> bool:
        """So many were lost without having been of use that no more is asked for."""
        return self.lost_in_a_row >= HOPELESS

    @property
    def wanted(self) -> bool:
        """A spare was used up, and there is hope for another."""
        return self._used_up and not self.hopeless

    def joined(self) -> None:
        """A machine joined: it answers a request, if there is one."""
        self.unanswered = max(0, self.unanswered - 1)

    def promoted(self) -> None:
        """A spare took a seat."""
        self._used_up = True

    def lost(self, *, of_use: bool) -> None:
        """A machine was lost; of use means that it was parked, or has done a step."""
        self._used_up = True
        if not of_use:
            self.lost_in_a_row += 1

    def of_use(self) -> None:
        """A machine proved to be of use: there is hope."""
        self.lost_in_a_row = 0

    def request(self, waiting: int, *, urgent: bool, switching: bool) -> StandbyReplenish | None:
        """The request for one more spare, if one is due.

        Args:
            waiting: spares that are idle.
            urgent: a seat is empty, and no spare was found for it.
            switching: a spare is taking a seat.
        """
        roster = self._roster
        if roster.job is None or not self.wanted:
            return None
        calm = roster.started and roster.settled and not switching
        unlaunched = roster.generation == 0
        wanted = roster.job.standbys + (roster.size if unlaunched else 0)
        if not (calm or urgent or unlaunched) or waiting + self.unanswered >= wanted:
            return None
        self._ordinal += 1
        self.unanswered += 1
        reason = f"{waiting} of {wanted} {'machines' if unlaunched else 'standbys'} are left"
        return StandbyReplenish(ordinal=self._ordinal, reason=reason)
