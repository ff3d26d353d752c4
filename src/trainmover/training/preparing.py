"""From a request to prepare to an order: which peers, which links.

What lives here: what an epoch asks of this process, as a value.  What never lives here: making the links
(``ccl.table``), the place that a process takes (``places``), and when an epoch is entered (``session``,
``boundary``).
"""

from __future__ import annotations

from dataclasses import replace

from trainmover.ccl.calls import Place
from trainmover.ccl.communicator import Communicator
from trainmover.ccl.table import Peer, Plan
from trainmover.events.catalogue import SwitchPrepare
from trainmover.topology.layout import Layout
from trainmover.training.orders import Order
from trainmover.training.places import possible


def order_of(
    event: SwitchPrepare,
    layout: Layout,
    place: Place,
    communicator: Communicator,
    last: Order | None,
    *,
    settled: bool,
) -> Order:
    """What an epoch asks of this process.

    Args:
        event: the request.
        layout: who sits where in that epoch.
        place: this process's place there.
        communicator: this process's.
        last: the order of the epoch that holds; None before the first.
        settled: this process has its place already; else the order names the place that it takes.
    """
    rank = place.rank
    mine = {item for item in Order(event, layout, None).state_links() if rank in (item.low, item.high)}
    wanted = possible(event, rank, communicator.links_at(place, layout.vacant)) | mine
    peers = {
        other: peer
        for other, peer in peers_of(event, last).items()
        if other // event.ranks_per_machine not in layout.vacant
    }
    for other in peers.keys() & set(layout.ranks_of(layout.machine_of(rank))):
        peers[other] = replace(peers[other], beside=True)
    plan = Plan(event.epoch, rank, peers, wanted, event.limit_seconds)
    return Order(event, layout, plan, None if settled else place)


def peers_of(event: SwitchPrepare, last: Order | None) -> dict[int, Peer]:
    """Where the ranks are: all that a request says, on top of what is known from the last order."""
    known = {} if last is None or last.plan is None else dict(last.plan.peers)
    ranks = event.endpoint_ranks or range(len(event.endpoints))
    told = {r: Peer(e.host, e.port, e.life) for r, e in zip(ranks, event.endpoints, strict=True)}
    return known | told
