"""Machines that do not reach each other although both are well, and which of two is replaced.

What lives here: what ranks have said about peers that they dial in vain (``link.unreached``) or whose link
breaks however often it is repaired, and the choice.
What never lives here: whether a machine is well (``health``), who takes its place (``standby``).

Nobody can tell which of two machines between which the network drops everything is at fault; perhaps neither
is.  So the choice is by what it costs, and by what is known of both:

1. whose state somebody else has goes before one whose loss takes the job back to a checkpoint (unless it has
   :data:`MANY` partners, see 2); one whose state is nowhere else does not go at all: then the links are tried
   again, until the network is whole;
2. who has more partners that it does not reach goes first, as one fault explains all of that.  Partners
   count that were replaced for it already, until a step is committed: it may be the one after all;
3. who is no member yet goes before a member;
4. the higher position goes.

A network may let small packets pass and drop the large ones (a frame size that one switch does not take):
then links are made, and break in the first step, again and again.  After :data:`BREAKS` epochs without a
committed step between them the two count as not reaching each other.

While training goes on beside the switch that a pair holds up (a move, a replica that comes back), only
those go who are no members yet: the members do train.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from trainmover.events.catalogue import LinkUnreached
from trainmover.services.roster import Life, Roster

BESIDE_TRAINING = frozenset({"move", "grow"})
"""Kinds of switches that training does not wait for."""

MANY = 3
"""Partners that a machine does not reach from which on some steps are the smaller loss."""

BREAKS = 3
"""Epochs, without a committed step between them, that the link of two machines which are well may break."""

NOBODY_GOES = "neither can be replaced, so it is tried again until the network is whole"
"""What is said where a replacement would cost the job."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """Who is to be replaced, whom it does not reach, what says so, and why it is this one."""

    life: Life
    partners: tuple[str, ...]
    said: tuple[str, ...]
    why: str


class Apart:
    """Pairs of lives that do not reach each other; see the module."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._pairs: dict[int, dict[frozenset[Life], str]] = {}
        self._breaks: dict[frozenset[Life], set[int]] = {}
        self._replaced: set[frozenset[Life]] = set()

    # -- facts -----------------------------------------------------------------------------------

    def note(self, event: LinkUnreached, one: Life, other: Life) -> None:
        """A rank of ``one`` has dialled one of ``other`` in vain."""
        self._pairs.setdefault(event.epoch, {}).setdefault(frozenset({one, other}), said_of(event))

    def broke(self, epoch: int, one: Life, other: Life) -> None:
        """The link of two machines has broken in an epoch."""
        self._breaks.setdefault(frozenset({one, other}), set()).add(epoch)

    def repaired_in_vain(self, epoch: int) -> None:
        """This epoch is broken, and nobody was lost: whose link broke too often do not reach each other."""
        for pair, epochs in self._breaks.items():
            if epoch in epochs and len(epochs) >= BREAKS:
                one, other = sorted(machine for machine, _ in pair)
                listed = ", ".join(str(broken) for broken in sorted(epochs))
                why = f"the link of {one} and {other} broke in the epochs {listed}, without a step between"
                self._pairs.setdefault(epoch, {}).setdefault(pair, why)

    def reached(self, epoch: int, machines: Collection[str]) -> None:
        """They reach each other after all."""
        pairs = self._pairs.get(epoch, {})
        for pair in [pair for pair in pairs if {machine for machine, _ in pair} == set(machines)]:
            del pairs[pair]

    def over(self, epoch: int) -> None:
        """This epoch came about, or will not: what was missing for it, and before, is of no interest."""
        for old in [known for known in self._pairs if known <= epoch]:
            del self._pairs[old]

    def stepped(self) -> None:
        """Training goes on: whoever is there reaches whom it must."""
        self._breaks.clear()
        self._replaced.clear()

    # -- questions -------------------------------------------------------------------------------

    def lives(self, epoch: int) -> set[Life]:
        """Everybody who is in a pair that holds up this epoch."""
        return {life for pair in self._pairs.get(epoch, ()) for life in pair}

    def why(self, epoch: int) -> str:
        """The pairs of an epoch, in words."""
        return "; ".join(self._pairs.get(epoch, {}).values())

    def choose(self, epoch: int, kind: str) -> list[Chosen]:
        """Who is replaced, so that no pair is left; nobody: where none of a pair can be."""
        left, going = set(self._pairs.get(epoch, ())), list[Chosen]()
        seats = {seat for seat, _ in self._roster.lost()}
        while left:
            known = left | self._replaced
            partners = {life: _partners(life, known) for pair in left for life in pair}
            able = [life for life in sorted(partners) if self._price(life, seats, kind) is not None]
            if not able:
                break
            best = max(able, key=lambda life: self._rank(life, partners, seats, kind))
            others = _partners(best, left)
            why = self._why(best, sorted(others)[0], partners, seats, kind)
            said = tuple(text for pair, text in self._pairs[epoch].items() if best in pair)
            going.append(Chosen(best, tuple(sorted(machine for machine, _ in others)), said, why))
            seat = self._roster.seat_of(best[0])
            if self._is_member(best) and seat is not None:
                seats.add(seat)
            self._replaced |= {pair for pair in left if best in pair}
            left = {pair for pair in left if best not in pair}
        return going

    # -- the choice ------------------------------------------------------------------------------

    def _is_member(self, life: Life) -> bool:
        return self._roster.is_member(*life)

    def _price(self, life: Life, lost: Collection[int], kind: str) -> int | None:
        """What it costs to lose a machine beside these seats: nothing (0), steps (1), the job (None)."""
        roster, seat = self._roster, self._roster.seat_of(life[0])
        if not self._is_member(life) or seat is None:
            return 0
        if kind in BESIDE_TRAINING:
            return None
        if not roster.started or not roster.all_described:
            return 0  # there is nothing to keep
        unkept = any(roster.next_taken(one) == other for one, other in _both(seat, lost))
        if not unkept and roster.unsourced(seat, lost) is None:
            return 0
        return 1 if roster.checkpointed else None

    def _rank(
        self, life: Life, partners: dict[Life, set[Life]], lost: Collection[int], kind: str
    ) -> tuple[int, int, bool, int]:
        price = self._price(life, lost, kind) or 0
        seat = self._roster.seat_of(life[0])
        if len(partners[life]) >= MANY:
            price = -1
        return (-price, len(partners[life]), not self._is_member(life), -1 if seat is None else seat)

    def _why(
        self, life: Life, other: Life, partners: dict[Life, set[Life]], lost: Collection[int], kind: str
    ) -> str:
        """What decided between a machine and one that it does not reach."""
        mine, theirs = (self._rank(one, partners, lost, kind) for one in (life, other))
        if self._price(other, lost, kind) is None and kind in BESIDE_TRAINING:
            return f"{other[0]} trains"
        if self._price(other, lost, kind) is None or (mine[0] != theirs[0] and mine[0] <= 0):
            return f"with {other[0]} the job would lose more"
        if mine[1] != theirs[1]:
            names = ", ".join(sorted({machine for machine, _ in partners[life]}))
            return f"it does not reach {names}, and {other[0]} fewer"
        if mine[2] != theirs[2]:
            return "it is no member yet"
        return f"of the two it has the higher position, {mine[3]}"


def said_of(event: LinkUnreached) -> str:
    """What a rank's complaint comes to, in words."""
    return (
        f"{event.machine} has not reached {event.peer_machine} for {event.seconds:.0f} s "
        f"(link {event.rank}-{event.peer} of epoch {event.epoch}: {event.reason})"
    )


def _partners(life: Life, pairs: Iterable[frozenset[Life]]) -> set[Life]:
    return {other for pair in pairs if life in pair for other in pair if other != life}


def _both(seat: int, others: Collection[int]) -> list[tuple[int, int]]:
    return [pair for other in others if other != seat for pair in ((seat, other), (other, seat))]
