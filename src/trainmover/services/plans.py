"""Plans: a next layout as the event that tells everybody.

What lives here: what ``plan.ready`` carries of a layout, its links and endpoints, and how that stays
small in a large job.  What never lives here: when there is a plan, and with whom.

Up to :data:`WHOLE` ranks a plan carries every endpoint by rank, and a start names every link.  A
larger job's would be megabytes, made and sent while everybody waits.  There, a change carries the
endpoints of the ranks that are new and of those that get a link to a new one or serve it state
(``endpoint_ranks`` says which they are; all others keep the endpoint that they had in the epoch that
the plan follows), and a start does not list its links: they follow from the layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from operator import attrgetter

from trainmover.errors import ConfigError
from trainmover.events.catalogue import MAX_NAME, Endpoint, LinkName, PlanReady, SwitchKind, TrainingStarted
from trainmover.topology import Delta, Grid, Groups, Layout, SeatedLink, delta

WHOLE = 4096
"""Ranks up to which a plan carries everything: some hundred kilobytes."""

SOURCES = 8
"""Ranks that stay, from the lowest up, whose endpoints a change carries: a joiner gets its state there."""

EndpointOf = Callable[[int], Endpoint]
"""Where a rank of the new layout listens."""


def groups_in(event: TrainingStarted, world_size: int) -> Groups:
    """The groups that a rank tells of, as far as they can be.

    What a rank says is not trusted to fit: a group of ranks that are not there, or twice, is none, and
    neither is a grid that is larger than the world or a list under the name of a grid's group.
    """
    grids: list[Grid] = []
    for told in event.grids:
        try:
            grid = Grid(tuple((dim.name, dim.size) for dim in told.dims), told.axes, told.first)
            Groups(grids=[*grids, grid])
        except ConfigError:
            continue
        longest = max(len(".".join(axis)) for axis in grid.lanes) + len(f":{world_size}")
        if grid.first + grid.ranks <= world_size and longest <= MAX_NAME:
            grids.append(grid)
    named = Groups(grids=grids)
    listed = {
        name: ranks
        for name, ranks in event.groups.items()
        if name not in named and len(set(ranks)) == len(ranks) and all(rank < world_size for rank in ranks)
    }
    return Groups(listed, grids)


def start_of(layout: Layout, groups: Groups) -> Delta:
    """What a start makes: every link, listed if they are not too many."""
    if layout.world_size <= WHOLE:
        return delta(None, layout, groups)
    return Delta(frozenset(), frozenset(), groups.links_total(layout.world_size, layout.ranks_per_machine))


def endpoints_in(
    layout: Layout, kind: SwitchKind, seats: Iterable[int], change: Delta, endpoint_of: EndpointOf
) -> tuple[tuple[Endpoint, ...], tuple[int, ...]]:
    """Endpoints that a plan carries, and the ranks that they belong to (none: all, by rank)."""
    if kind == "start" or layout.world_size <= WHOLE:
        return tuple(endpoint_of(rank) for rank in range(layout.world_size)), ()
    slots = layout.ranks_per_machine
    ranks = {rank for seat in seats for rank in range(seat * slots, (seat + 1) * slots)}
    if ranks:
        stay = (rank for rank in range(layout.world_size) if rank not in ranks)
        ranks |= set(islice(stay, SOURCES))
    ranks.update(rank for seated in change.added for rank in (seated.link.low, seated.link.high))
    found = tuple(sorted(ranks))
    return tuple(endpoint_of(rank) for rank in found), found


def plan_of(
    layout: Layout,
    *,
    base: int,
    kind: SwitchKind,
    generation: int,
    incidents: Sequence[str],
    changes: Mapping[int, tuple[str, str]],
    change: Delta,
    endpoint_of: EndpointOf,
) -> PlanReady:
    """The event of a next layout, in which ``changes`` are leaver and joiner by seat.

    Names of machines and endpoints were checked when they came in; they are set as they are, so that
    the price of a plan is that of what changes.
    """
    endpoints, ranks = endpoints_in(layout, kind, changes, change, endpoint_of)
    plan = PlanReady(
        epoch=layout.epoch,
        base_epoch=base,
        kind=kind,
        generation=generation,
        incidents=tuple(incidents),
        machines=(),
        ranks_per_machine=layout.ranks_per_machine,
        leavers=tuple(leaver for leaver, _ in changes.values()),
        joiners=tuple(joiner for _, joiner in changes.values()),
        endpoints=(),
        endpoint_ranks=ranks,
        links_added=_names(change.added),
        links_dropped=_names(change.dropped),
        links_total=change.total,
    )
    return plan.model_copy(update={"machines": layout.machines, "endpoints": endpoints})


def _names(links: Iterable[SeatedLink]) -> tuple[LinkName, ...]:
    found = sorted({seated.link for seated in links}, key=attrgetter("group", "channel", "low", "high"))
    return tuple(
        LinkName(group=link.group, channel=link.channel, low=link.low, high=link.high) for link in found
    )
