"""What the ranks of one generation are, as each of them said of itself.

What lives here: ``rank.described`` written down in few bytes (a job of 131,072 ranks has as many of
them), and the questions that it answers: who does the same, who has the same state, which groups
there are.  What never lives here: roles (``roles``), who is alive (``roster``).

Nothing is worth asking before every rank was heard (:meth:`Described.whole`); indexes over all ranks
are made then, once and not in the middle of an incident, as what a rank said does not change.  A
rank that says it again is not listened to: a recovery may let it commit its first steps twice.

What a rank says is not trusted to fit: a group of ranks that are not there, or twice, is none, and
when two ranks mean different things by one name, the lowest rank's word counts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from itertools import chain

from trainmover.events.catalogue import GroupRow, RankDescribed
from trainmover.topology import Groups, Listed, Row

Stage = tuple[int, int]
"""Own place in a pipeline, and the number of places."""


class Described:
    """The ranks of one generation; see the module.

    Attributes:
        signatures: what each rank calls, by rank.
        stages: each rank's place in a pipeline, for those that have one.
    """

    def __init__(self) -> None:
        self.signatures: dict[int, str] = {}
        self.stages: dict[int, Stage] = {}
        self._states: dict[int, str] = {}
        self._rows: dict[int, tuple[GroupRow, ...]] = {}
        self._whole = False
        self._words: dict[str, str] = {}
        self._same_rows: dict[GroupRow, GroupRow] = {}
        self._replicas: dict[str, list[int]] | None = None
        self._groups: Groups | None = None
        self._ties: tuple[dict[int, int], dict[int, list[int]]] | None = None
        self._unsharing: set[int] = set()

    def note(self, event: RankDescribed) -> None:
        """A rank says what it is."""
        rank = event.rank
        if rank in self.signatures:
            return
        self.signatures[rank] = self._words.setdefault(event.signature, event.signature)
        self._states[rank] = self._words.setdefault(event.state, event.state)
        if not event.shares:
            self._unsharing.add(rank)
        self._rows[rank] = tuple(self._same_rows.setdefault(row, row) for row in event.groups)
        if event.stage is not None:
            self.stages[rank] = event.stage
        self._replicas = self._groups = self._ties = None

    def whole(self, world_size: int) -> bool:
        """Every rank was heard."""
        if not self._whole and 0 < world_size <= len(self.signatures):
            self._whole = all(rank in self.signatures for rank in range(world_size))
            if self._whole:
                self._alike(0)
        return self._whole

    def rows(self, rank: int) -> tuple[GroupRow, ...]:
        """The groups that a rank is in, in the order in which it made them."""
        return self._rows[rank]

    def groups(self, world_size: int) -> Groups:
        """All groups of all ranks, by name."""
        if self._groups is None:
            found: dict[str, Row | Listed] = {}
            for rank in sorted(self._rows):
                for row in self._rows[rank]:
                    if row.name not in found and (members := _members(row, world_size)) is not None:
                        found[row.name] = members
            self._groups = Groups(found)
        return self._groups

    def replicas(self, rank: int) -> Iterator[int]:
        """The other ranks that have the state of this one: the next higher first, then round."""
        alike = self._alike(rank)
        at = bisect_right(alike, rank)
        others = (alike[place] for place in chain(range(at, len(alike)), range(at)))
        return (other for other in others if other != rank)

    @property
    def all_share(self) -> bool:
        """Every rank that was heard asks for its shares of the batch."""
        return not self._unsharing

    def replica(self, rank: int) -> list[int]:
        """The ranks of the data-parallel replica that a rank is in: those that groups tie to it.

        A group ties its members when no two of them have the same state.
        """
        if self._ties is None:
            parent = {other: other for other in self._states}
            groups = self.groups(max(self._states, default=-1) + 1)
            for name in groups:
                members = groups[name]
                if len({self._states.get(member, "") for member in members}) < len(members):
                    continue
                first = _root(parent, members[0])
                for member in members[1:]:
                    parent[_root(parent, member)] = first
            found: dict[int, list[int]] = {}
            for other in sorted(parent):
                found.setdefault(_root(parent, other), []).append(other)
            self._ties = {other: _root(parent, other) for other in parent}, found
        roots, ties = self._ties
        return ties[roots[rank]]

    def sources(self, rank: int, may: Callable[[int], bool], first: int, limit: int) -> tuple[int, ...]:
        """Up to ``limit`` other ranks with the state of this one, of those that ``may`` serve it.

        Args:
            rank: whose state is wanted.
            may: whether a rank stays and lives.
            first: the rank that is named first, if it is one of them.
            limit: how many are enough.
        """
        found: list[int] = []
        if self._states.get(first) == self._states[rank] and first != rank and may(first):
            found.append(first)
        for other in self.replicas(rank):
            if len(found) >= limit:
                break
            if other != first and may(other):
                found.append(other)
        return tuple(found)

    def agree(self, digests: Mapping[int, str]) -> bool:
        """Whether ranks that had the same state have the same digests; the undescribed are one class."""
        of_class: dict[str, str] = {}
        return all(
            of_class.setdefault(self._states.get(rank, ""), digest) == digest
            for rank, digest in digests.items()
        )

    def _alike(self, rank: int) -> list[int]:
        if self._replicas is None:
            self._replicas = {}
            for other in sorted(self._states):
                self._replicas.setdefault(self._states[other], []).append(other)
        return self._replicas[self._states[rank]]


def _root(parent: dict[int, int], rank: int) -> int:
    """The rank that stands for all that are tied to this one."""
    while parent[rank] != rank:
        parent[rank] = parent[parent[rank]]
        rank = parent[rank]
    return rank


def _members(row: GroupRow, world_size: int) -> Row | Listed | None:
    """A row's ranks; None when they cannot be."""
    if row.count:
        fits = row.first + row.stride * (row.count - 1) < world_size
        return Row(row.first, row.stride, row.count) if fits else None
    fits = len(set(row.ranks)) == len(row.ranks) > 0 and max(row.ranks) < world_size
    return Listed(row.ranks) if fits else None
