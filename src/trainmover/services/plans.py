"""Plans: a next layout as the event that tells everybody.

What lives here: what ``plan.ready`` carries of a layout, its links and endpoints, what the ranks of
joiners have to know, and how that stays small in a large job.  What never lives here: when there is
a plan, and with whom.

Up to :data:`WHOLE` ranks a plan carries every endpoint by rank, and a start names every link.  A
larger job's would be megabytes, made and sent while everybody waits.  There, a change carries the
endpoints of the ranks that are new and of those that get a link to a new one or serve it state
(``endpoint_ranks`` says which they are; all others keep the endpoint that they had in the epoch that
the plan follows), and a start does not list its links: they follow from the layout.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import attrgetter

from trainmover.events.catalogue import Endpoint, JoinerRank, LinkName, PlanReady, SwitchKind
from trainmover.services.roster import Roster
from trainmover.topology import Delta, Groups, Layout, SeatedLink, delta

WHOLE = 4096
"""Ranks up to which a plan carries everything: some hundred kilobytes."""

SOURCES = 8
"""Most ranks that are named to a joiner's rank as those that have its state."""

EndpointOf = Callable[[int], Endpoint]
"""Where a rank of the new layout listens."""


def start_of(layout: Layout, groups: Groups) -> Delta:
    """What a start makes: every link, listed if they are not too many."""
    if layout.world_size <= WHOLE:
        return delta(None, layout, groups)
    return Delta(frozenset(), frozenset(), groups.links_total(layout.world_size, layout.ranks_per_machine))


def endpoints_in(
    layout: Layout,
    kind: SwitchKind,
    seats: Iterable[int],
    change: Delta,
    endpoint_of: EndpointOf,
    sources: Iterable[int] = (),
) -> tuple[tuple[Endpoint, ...], tuple[int, ...]]:
    """Endpoints that a plan carries, and the ranks that they belong to (none: all, by rank)."""
    if kind == "start" or layout.world_size <= WHOLE:
        present = layout.present
        return tuple(endpoint_of(rank) for rank in present), tuple(present) if layout.vacant else ()
    slots = layout.ranks_per_machine
    seats = set(seats) - layout.vacant
    ranks = {rank for seat in seats for rank in range(seat * slots, (seat + 1) * slots)}
    ranks.update(sources)
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
    joiner_ranks: tuple[JoinerRank, ...] = (),
) -> PlanReady:
    """The event of a next layout, in which ``changes`` are leaver and joiner by seat (or nobody).

    Names of machines and endpoints were checked when they came in; they are set as they are, so that
    the price of a plan is that of what changes.
    """
    sources = {rank for joiner in joiner_ranks for rank in joiner.sources}
    sources.update(joiner.mirrored for joiner in joiner_ranks if joiner.mirrored is not None)
    endpoints, ranks = endpoints_in(layout, kind, changes, change, endpoint_of, sources)
    plan = PlanReady(
        epoch=layout.epoch,
        base_epoch=base,
        kind=kind,
        generation=generation,
        incidents=tuple(incidents),
        machines=(),
        ranks_per_machine=layout.ranks_per_machine,
        leavers=tuple(leaver for leaver, _ in changes.values() if leaver),
        joiners=tuple(joiner for _, joiner in changes.values() if joiner),
        endpoints=(),
        endpoint_ranks=ranks,
        links_added=_names(change.added),
        links_dropped=_names(change.dropped),
        links_total=change.total,
        joiner_ranks=joiner_ranks,
    )
    return plan.model_copy(update={"machines": layout.machines, "endpoints": endpoints})


def joiner_ranks(
    roster: Roster, seats: Collection[int], leaving: Collection[int] = ()
) -> tuple[JoinerRank, ...] | None:
    """What the ranks of joiners on these seats have to know; None when nobody has the state of one.

    A rank's sources live on seats that stay; its guardian, which has its private state, comes first.  Of a
    seat that was vacant every rank has kept that; the first source sends it.  Where nobody has the state,
    the guardian has a mirror of it, or it is lost.

    Args:
        roster: who is where.
        seats: the joiners' seats.
        leaving: seats that are vacated.
    """
    described, slots, vacant = roster.described, roster.slots, frozenset(roster.vacant)
    away = {*seats, *leaving, *vacant, *(seat for seat, _ in roster.lost())}
    found = []
    for seat in seats:
        for rank in range(seat * slots, (seat + 1) * slots):
            guardian = roster.next_taken(seat) * slots + rank % slots
            sources = described.sources(rank, lambda other: other // slots not in away, guardian, SOURCES)
            mirrored = None if sources else roster.mirror_of(rank, away)
            if not sources and (mirrored is None or seat in vacant):
                return None
            keeper = sources[0] if seat in vacant else None
            rows = described.rows(rank)
            found.append(
                JoinerRank(rank=rank, groups=rows, sources=sources, keeper=keeper, mirrored=mirrored)
            )
    return tuple(found)


def _names(links: Iterable[SeatedLink]) -> tuple[LinkName, ...]:
    found = sorted({seated.link for seated in links}, key=attrgetter("group", "channel", "low", "high"))
    return tuple(
        LinkName(group=link.group, channel=link.channel, low=link.low, high=link.high) for link in found
    )
