"""A job's process groups, given compactly: grids for the regular ones, lists for the others.

A job of 131,072 ranks in data, tensor and pipeline groups has a hundred thousand groups, but three
numbers describe them.  A :class:`Grid` lays ranks out with named dimensions, the last one varying
fastest (as ``torch.distributed.device_mesh`` does); along an *axis* (a dimension, or several that
follow one another) the ranks that differ only there are a group, so the group of a rank is a
matter of arithmetic.  What fits no grid is listed.

:class:`Groups` is both, and also the plain mapping from a group's name to its ranks, made up as it
is asked for.  A grid's groups are named by axis and lowest rank: ``data:17``, ``pipeline.data:3``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from trainmover.errors import ConfigError
from trainmover.topology.members import MESH_LIMIT, Listed, Row, boundary_total, pairs_in

Axis = tuple[str, ...]
"""Names of dimensions that follow one another in the grid."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Ranks ``first`` to ``first + product of sizes - 1`` in named dimensions, outermost first.

    Attributes:
        dims: name and size of each dimension.
        axes: along which there are groups; empty: along each dimension.
        first: the grid's lowest rank.
    """

    dims: tuple[tuple[str, int], ...]
    axes: tuple[Axis, ...] = ()
    first: int = 0
    _steps: dict[Axis, tuple[int, int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        names = [name for name, _ in self.dims]
        if not names or len(set(names)) != len(names) or min(size for _, size in self.dims) < 1:
            raise ConfigError(
                f"a grid has dimensions of different names, each of size 1 or more, not {self.dims}"
            )
        if self.first < 0:
            raise ConfigError(f"a grid begins at rank 0 or later, not at {self.first}")
        sizes = [size for _, size in self.dims]
        steps: dict[Axis, tuple[int, int]] = {}
        for axis in self.axes or tuple((name,) for name in names):
            at = names.index(axis[0]) if axis and axis[0] in names else len(names)
            if not axis or axis in steps or tuple(names[at : at + len(axis)]) != axis:
                raise ConfigError(
                    f"axis {'.'.join(axis)!r} is no run of the dimensions {', '.join(names)}, or twice"
                )
            steps[axis] = math.prod(sizes[at + len(axis) :]), math.prod(sizes[at : at + len(axis)])
        object.__setattr__(self, "_steps", steps)

    @property
    def ranks(self) -> int:
        """Number of ranks in the grid."""
        return math.prod(size for _, size in self.dims)

    @property
    def lanes(self) -> tuple[Axis, ...]:
        """The axes along which there are groups."""
        return tuple(self._steps)

    def row(self, axis: Axis, rank: int) -> Row | None:
        """The group of a rank along an axis; None when the rank is not in the grid."""
        offset = rank - self.first
        if not 0 <= offset < self.ranks:
            return None
        stride, size = self._steps[axis]
        return Row(rank - offset % (stride * size) // stride * stride, stride, size)

    def rows(self, axis: Axis) -> Iterator[Row]:
        """All groups along an axis."""
        stride, size = self._steps[axis]
        for block in range(self.first, self.first + self.ranks, stride * size):
            for first in range(block, block + stride):
                yield Row(first, stride, size)

    def links_along(self, axis: Axis, ranks_per_machine: int) -> int:
        """Number of links of all groups along an axis: groups that sit alike are counted once."""
        stride, size = self._steps[axis]
        blocks = self.ranks // (stride * size)
        if stride >= ranks_per_machine or size <= MESH_LIMIT:
            return blocks * stride * pairs_in(Row(0, stride, size), ranks_per_machine)
        # Only where a row begins in its machine matters, and that repeats from block to block.
        period = ranks_per_machine // math.gcd(stride * size, ranks_per_machine)
        total = 0
        for number in range(min(period, blocks)):
            alike = (blocks - number + period - 1) // period
            block = self.first + number * stride * size
            rows = (Row(first, stride, size) for first in range(block, block + stride))
            total += alike * sum(pairs_in(row, ranks_per_machine) for row in rows)
        return total


class Groups(Mapping[str, tuple[int, ...]]):
    """The groups of a job by name; see the module.

    Args:
        listed: groups given by their ranks, in group-rank order, or by a row of ranks.
        grids: groups given by grids; no two grids have an axis of the same name.

    Raises:
        ConfigError: two groups have the same name.
    """

    def __init__(
        self,
        listed: Mapping[str, tuple[int, ...] | Row | Listed] | None = None,
        grids: Iterable[Grid] = (),
    ) -> None:
        self.listed = {
            name: Listed(ranks) if isinstance(ranks, tuple) else ranks
            for name, ranks in (listed or {}).items()
        }
        self.grids = tuple(grids)
        self._lanes: dict[str, tuple[Grid, Axis]] = {}
        self._lists_of: dict[int, list[str]] = {}
        self._totals: dict[tuple[int, int], int] = {}
        for grid in self.grids:
            for axis in grid.lanes:
                if ".".join(axis) in self._lanes:
                    raise ConfigError(f"two grids have groups along {'.'.join(axis)}")
                self._lanes[".".join(axis)] = grid, axis
        for name, members in self.listed.items():
            if self._in_grid(name) is not None:
                raise ConfigError(f"a group is listed under the name of a grid's: {name}")
            for rank in members.ranks:
                self._lists_of.setdefault(rank, []).append(name)

    def __getitem__(self, name: str) -> tuple[int, ...]:
        if name in self.listed:
            return self.listed[name].ranks
        row = self._in_grid(name)
        if row is None:
            raise KeyError(name)
        return row.ranks

    def __iter__(self) -> Iterator[str]:
        yield from self.listed
        for lane, (grid, axis) in self._lanes.items():
            for row in grid.rows(axis):
                yield f"{lane}:{row.first}"

    def __len__(self) -> int:
        return len(self.listed) + sum(
            grid.ranks // math.prod(size for name, size in grid.dims if name in axis)
            for grid, axis in self._lanes.values()
        )

    def of(self, rank: int) -> Iterator[tuple[str, Row | Listed]]:
        """The groups that a rank is in."""
        for name in self._lists_of.get(rank, ()):
            yield name, self.listed[name]
        for lane, (grid, axis) in self._lanes.items():
            row = grid.row(axis, rank)
            if row is not None:
                yield f"{lane}:{row.first}", row

    def links_total(self, world_size: int, ranks_per_machine: int) -> int:
        """Number of links of the groups and the boundary; counted once, as only seats change."""
        key = (world_size, ranks_per_machine)
        if key not in self._totals:
            self._totals[key] = (
                boundary_total(world_size, ranks_per_machine)
                + sum(pairs_in(members, ranks_per_machine) for members in self.listed.values())
                + sum(grid.links_along(axis, ranks_per_machine) for grid, axis in self._lanes.values())
            )
        return self._totals[key]

    def _in_grid(self, name: str) -> Row | None:
        lane, _, first = name.rpartition(":")
        if lane not in self._lanes or not first.isdecimal():
            return None
        grid, axis = self._lanes[lane]
        row = grid.row(axis, int(first))
        return row if row is not None and f"{lane}:{row.first}" == name else None


def as_groups(groups: Mapping[str, tuple[int, ...]]) -> Groups:
    """The groups with their indexes; a plain mapping gets them now."""
    return groups if isinstance(groups, Groups) else Groups(groups)
