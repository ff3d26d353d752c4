"""Who is in a group, as questions that one member can ask without looking at all the others.

A large job has groups by the hundred thousand and groups of a hundred thousand, and a change of one
machine must not walk them.  What a member's links depend on is little: its place among the group's
members on its own machine, and that machine's place among the group's machines.  A *cell* is the
part of a group that sits on one machine; the canonical bracketing is a balanced tree inside each
cell and one over the cells, in the order in which the group meets the machines.

Three shapes.  A small group is a *mesh*: every pair, one hop, the whole bandwidth.  A larger one has
the edges of the canonical reduction tree and a ring.  Where it has the same number of members, two
to ``MESH_LIMIT``, on each of several machines, it is *layered* as well: a mesh in every cell, and for
each place in a cell a *lane* that joins the members in this place (a mesh, or their reduction tree).

:class:`Row` answers by arithmetic: equally spaced ranks, which is what a dimension of a grid gives.
:class:`Listed` takes any ranks in any order and keeps an index.  :func:`partners` gives one
member's links; the boundary's, which has the world as its group, have functions of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from trainmover.topology.layout import guardian_of, ward_of

MESH_LIMIT = 16
"""Up to this many members a group, a cell or a lane is a full mesh."""


def is_layered(widths: Collection[int]) -> bool:
    """Whether a large group whose cells have these numbers of members is layered."""
    return len(widths) > 1 and len(set(widths)) == 1 and 1 < next(iter(widths)) <= MESH_LIMIT


class Members(Protocol):
    """A group's ranks by group rank (*index*), and its cells for K ranks per machine."""

    @property
    def size(self) -> int:
        """Number of members."""
        ...

    def rank(self, index: int) -> int:
        """Global rank of a member."""
        ...

    def index(self, rank: int) -> int:
        """Group rank of a global rank that is in the group."""
        ...

    def cells(self, ranks_per_machine: int) -> int:
        """Number of machines that the group is on."""
        ...

    def cell_of(self, index: int, ranks_per_machine: int) -> tuple[int, int, int]:
        """A member's cell, its place in the cell, and the number of members there."""
        ...

    def member(self, cell: int, place: int, ranks_per_machine: int) -> int:
        """The index of the member in this place of a cell."""
        ...

    def even_width(self, ranks_per_machine: int) -> int | None:
        """Members in a cell, where all cells have the same number."""
        ...


@dataclass(frozen=True, slots=True)
class Row:
    """The ranks ``first, first + stride, first + 2 * stride, ...``, ``size`` of them."""

    first: int
    stride: int
    size: int

    @property
    def ranks(self) -> tuple[int, ...]:
        """All of them."""
        return tuple(range(self.first, self.first + self.stride * self.size, self.stride))

    def __contains__(self, rank: int) -> bool:
        index, rest = divmod(rank - self.first, self.stride)
        return rest == 0 and 0 <= index < self.size

    def rank(self, index: int) -> int:
        return self.first + index * self.stride

    def index(self, rank: int) -> int:
        return (rank - self.first) // self.stride

    def cells(self, ranks_per_machine: int) -> int:
        if self.stride >= ranks_per_machine:
            return self.size
        return self.rank(self.size - 1) // ranks_per_machine - self.first // ranks_per_machine + 1

    def cell_of(self, index: int, ranks_per_machine: int) -> tuple[int, int, int]:
        if self.stride >= ranks_per_machine:
            return index, 0, 1
        cell = self.rank(index) // ranks_per_machine - self.first // ranks_per_machine
        start = self._start(cell, ranks_per_machine)
        return cell, index - start, self._start(cell + 1, ranks_per_machine) - start

    def member(self, cell: int, place: int, ranks_per_machine: int) -> int:
        if self.stride >= ranks_per_machine:
            return cell
        return self._start(cell, ranks_per_machine) + place

    def _start(self, cell: int, ranks_per_machine: int) -> int:
        """Index of a cell's first member; steps shorter than a machine pass over no machine."""
        low = (self.first // ranks_per_machine + cell) * ranks_per_machine
        return min(self.size, max(0, -((self.first - low) // self.stride)))

    def even_width(self, ranks_per_machine: int) -> int | None:
        if self.stride >= ranks_per_machine:
            return 1
        if self.cells(ranks_per_machine) == 1:
            return self.size
        aligned = (
            ranks_per_machine % self.stride == 0
            and self.first % ranks_per_machine < self.stride
            and self.size * self.stride % ranks_per_machine == 0
        )
        return ranks_per_machine // self.stride if aligned else None


class Listed:
    """A group of any ranks in any order; indexes are made when they are first asked for."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = tuple(ranks)
        self._index: dict[int, int] | None = None
        self._per_machine = 0
        self._cells: list[list[int]] = []
        self._cell_of: list[tuple[int, int]] = []
        self._even: int | None = None

    @property
    def size(self) -> int:
        return len(self.ranks)

    def __contains__(self, rank: int) -> bool:
        return rank in self._indexes

    def rank(self, index: int) -> int:
        return self.ranks[index]

    def index(self, rank: int) -> int:
        return self._indexes[rank]

    @property
    def _indexes(self) -> dict[int, int]:
        if self._index is None:
            self._index = {rank: index for index, rank in enumerate(self.ranks)}
        return self._index

    def cells(self, ranks_per_machine: int) -> int:
        self._divide(ranks_per_machine)
        return len(self._cells)

    def cell_of(self, index: int, ranks_per_machine: int) -> tuple[int, int, int]:
        self._divide(ranks_per_machine)
        cell, place = self._cell_of[index]
        return cell, place, len(self._cells[cell])

    def member(self, cell: int, place: int, ranks_per_machine: int) -> int:
        self._divide(ranks_per_machine)
        return self._cells[cell][place]

    def even_width(self, ranks_per_machine: int) -> int | None:
        self._divide(ranks_per_machine)
        return self._even

    def _divide(self, ranks_per_machine: int) -> None:
        if self._per_machine == ranks_per_machine:
            return
        numbers: dict[int, int] = {}
        self._per_machine, self._cells, self._cell_of = ranks_per_machine, [], []
        for index, rank in enumerate(self.ranks):
            cell = numbers.setdefault(rank // ranks_per_machine, len(numbers))
            if cell == len(self._cells):
                self._cells.append([])
            self._cell_of.append((cell, len(self._cells[cell])))
            self._cells[cell].append(index)
        widths = {len(cell) for cell in self._cells}
        self._even = widths.pop() if len(widths) == 1 else None


def members_of(ranks: Sequence[int]) -> Row | Listed:
    """A group given by its ranks: a row where they are equally spaced, else a list."""
    first, stride = (ranks[0], ranks[1] - ranks[0]) if len(ranks) > 1 else (*ranks, 1)
    if stride > 0 and tuple(ranks) == tuple(range(first, first + stride * len(ranks), stride)):
        return Row(first, stride, len(ranks))
    return Listed(ranks)


def tree_partners(size: int, part: int) -> Iterator[int]:
    """Which parts a part is merged with in a balanced bracket of ``size`` parts: O(log size).

    The walk down the recursion of :func:`trainmover.topology.bracket.bracket`: a bracket merges the
    first part of its right half into the first part of its left half.
    """
    low, high = 0, size
    while high - low > 1:
        middle = low + (high - low + 1) // 2
        if part == low:
            yield middle
        elif part == middle:
            yield low
        if part < middle:
            high = middle
        else:
            low = middle


def partners(members: Members, index: int, ranks_per_machine: int, *, layered: bool = True) -> set[int]:
    """Indexes of the members that one member has links with.

    Args:
        members: the group.
        index: which member.
        ranks_per_machine: K of the layout.
        layered: False for the boundary, which is never layered.
    """
    size = members.size
    if size <= MESH_LIMIT:
        return {other for other in range(size) if other != index}
    cell, place, width = members.cell_of(index, ranks_per_machine)
    found = {(index - 1) % size, (index + 1) % size}
    if layered and _lanes(members, ranks_per_machine):
        cells = members.cells(ranks_per_machine)
        found.update(members.member(cell, other, ranks_per_machine) for other in range(width))
        lane = range(cells) if cells <= MESH_LIMIT else tree_partners(cells, cell)
        found.update(members.member(other, place, ranks_per_machine) for other in lane)
        found.discard(index)
        return found
    found.update(members.member(cell, other, ranks_per_machine) for other in tree_partners(width, place))
    if place == 0:
        cells = members.cells(ranks_per_machine)
        found.update(members.member(other, 0, ranks_per_machine) for other in tree_partners(cells, cell))
    return found


def _lanes(members: Members, ranks_per_machine: int) -> int:
    """Number of lanes of a large group; 0 when it is not layered."""
    width, cells = members.even_width(ranks_per_machine), members.cells(ranks_per_machine)
    return width if width is not None and is_layered([width] * min(cells, 2)) else 0


def pairs_in(members: Row | Listed, ranks_per_machine: int, *, layered: bool = True) -> int:
    """Number of links of a group; in closed form where its cells are even."""
    size = members.size
    if size <= MESH_LIMIT:
        return size * (size - 1) // 2
    width = members.even_width(ranks_per_machine) if isinstance(members, Row) else None
    if width is None:
        ends = (len(partners(members, index, ranks_per_machine, layered=layered)) for index in range(size))
        return sum(ends) // 2
    cells = size // width
    if layered and _lanes(members, ranks_per_machine):
        lane = cells * (cells - 1) // 2 if cells <= MESH_LIMIT else cells - 1
        # The ring runs inside the cells, but for one step from each to the next, which changes lanes.
        return cells * (width * (width - 1) // 2) + width * lane + cells
    # A merge of two parts that are neighbours in the group runs over a link of the ring.
    shared = cells * twos(width) + (twos(cells) if width == 1 else 0)
    return size - 1 + size - shared


@cache
def twos(size: int) -> int:
    """How many brackets of a balanced bracket of ``size`` parts hold exactly two parts."""
    if size <= 2:
        return size // 2
    return twos((size + 1) // 2) + twos(size // 2)


def boundary_partners(rank: int, world_size: int, ranks_per_machine: int) -> set[int]:
    """Ranks that a rank's boundary links lead to: the world's topology, its guardian and its ward."""
    found = partners(Row(0, 1, world_size), rank, ranks_per_machine, layered=False)
    found.add(guardian_of(rank, world_size, ranks_per_machine))
    found.add(ward_of(rank, world_size, ranks_per_machine))
    found.discard(rank)
    return found


def boundary_total(world_size: int, ranks_per_machine: int) -> int:
    """Number of the boundary's links, in closed form."""
    pairs = pairs_in(Row(0, 1, world_size), ranks_per_machine, layered=False)
    machines = world_size // ranks_per_machine
    if world_size <= MESH_LIMIT or ranks_per_machine == 1 or machines == 1:
        return pairs  # guardians are reached by the mesh, by the ring, or not at all
    guardians = world_size // 2 if machines == 2 else world_size
    # The tree joins the first ranks of neighbouring machines; of three, also of the last and the first.
    return pairs + guardians - twos(machines) - (1 if machines == 3 else 0)
