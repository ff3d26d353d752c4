"""Collectives as walks over links, for groups that are a full mesh.

Each function is a generator that runs on the engine's thread: it posts sends and receives on the
group's links and yields the transfers it must wait for.  One hop each way, every byte on the wire
at most once per direction and rank; reductions are *slice-wise*: member i owns slice i, receives
the others' parts of it into the links' staging memory, combines them in the canonical bracketing
and sends the result back.  Small reductions are :mod:`doubling_walks`'.

Tensors are flat, contiguous and on the CPU; group ranks index members everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from trainmover.ccl.engine import Steps
from trainmover.ccl.reduce import Combine
from trainmover.ccl.transfer import Transfer
from trainmover.ccl.view import Group, as_bytes
from trainmover.topology.bracket import leader, merges_of

NOTHING = memoryview(b"")


def slices(count: int, size: int) -> list[tuple[int, int]]:
    """Cut ``count`` elements into ``size`` nearly equal runs ``(start, end)``, multiples of 16 but one."""
    step = -(-count // size)
    step = -(-step // 16) * 16
    return [(min(i * step, count), min((i + 1) * step, count)) for i in range(size)]


def pieces(start: int, end: int, item_bytes: int, piece_bytes: int) -> Iterator[tuple[int, int]]:
    """Cut a run of elements into pieces of at most so many bytes."""
    step = max(1, piece_bytes // item_bytes)
    for at in range(start, end, step):
        yield at, min(at + step, end)


def combine_in_place(group: Group, parts: list[torch.Tensor], combine: Combine, out: torch.Tensor) -> None:
    """Combine the members' parts canonically into ``out``; the parts are used up."""
    steps = merges_of(group.tree)
    for number, (into, source) in enumerate(steps):
        last = number == len(steps) - 1
        combine(parts[into], parts[source], out if last else parts[into])
    if not steps:
        out.copy_(parts[leader(group.tree)])


def all_reduce(group: Group, flat: torch.Tensor, combine: Combine, tag: int) -> Steps:
    """Every member ends with the canonical combination of all; in place."""
    bounds = slices(flat.numel(), group.size)
    view, item = as_bytes(flat), flat.element_size()
    sends = [
        group.send_bytes(member, view[a * item : b * item], tag, flat)
        for piece in _by_piece(bounds, item, group.piece_bytes)
        for member in group.others
        for a, b in piece[member]
    ]
    sends += yield from _own_slice(group, flat, flat, bounds[group.me], combine, tag, share=True)
    results = [
        group.receive_bytes(member, view[a * item : b * item], tag, flat)
        for member in group.others
        for a, b in pieces(*bounds[member], item, group.piece_bytes)
    ]
    yield sends + results


def _by_piece(
    bounds: Sequence[tuple[int, int]], item: int, piece_bytes: int
) -> Iterator[list[list[tuple[int, int]]]]:
    """The k-th pieces of all slices, for k = 0, 1, ...: so that every owner can start early."""
    cut = [list(pieces(a, b, item, piece_bytes)) for a, b in bounds]
    for k in range(max(len(parts) for parts in cut)):
        yield [parts[k : k + 1] for parts in cut]


def _own_slice(
    group: Group,
    source: torch.Tensor,
    target: torch.Tensor,
    bounds: tuple[int, int],
    combine: Combine,
    tag: int,
    *,
    share: bool,
) -> Steps:
    """Receive the others' parts of my slice, piece by piece, and combine them into ``target``.

    Returns the transfers that share it. They are not waited for here: the others may have to receive
    before they can go out, as each of us does.
    """
    item = source.element_size()
    todo = list(pieces(*bounds, item, group.piece_bytes))
    posted: list[dict[int, tuple[torch.Tensor, Transfer]]] = []
    whole = todo[0][1] - todo[0][0] if todo else 0

    def post(k: int) -> None:
        if k < len(todo):
            a, b = todo[k]
            posted.append(
                {member: group.stage(member, source, b - a, tag, k % 2, whole) for member in group.others}
            )

    view = as_bytes(target) if share else NOTHING
    shared: list[Transfer] = []
    post(0)
    for k, (a, b) in enumerate(todo):
        post(k + 1)
        yield [transfer for _, transfer in posted[k].values()]
        parts = [source[a:b] if member == group.me else posted[k][member][0] for member in range(group.size)]
        combine_in_place(group, parts, combine, target[a:b])
        if share:
            shared += [
                group.send_bytes(member, view[a * item : b * item], tag, target) for member in group.others
            ]
    return shared


def reduce_scatter(
    group: Group,
    inputs: torch.Tensor,
    output: torch.Tensor,
    bounds: list[tuple[int, int]],
    combine: Combine,
    tag: int,
) -> Steps:
    """Member i ends with the combination of everybody's run ``bounds[i]`` of ``inputs``.

    ``output`` has the length of the own run, and may be that run; the others' runs are left as they are.
    """
    view, item = as_bytes(inputs), inputs.element_size()
    sends = [
        group.send_bytes(member, view[a * item : b * item], tag, inputs)
        for member in group.others
        for a, b in pieces(*bounds[member], item, group.piece_bytes)
    ]
    start, end = bounds[group.me]
    output.copy_(inputs[start:end])
    yield from _own_slice(group, output, output, (0, end - start), combine, tag, share=False)
    yield sends


def all_gather(group: Group, mine: torch.Tensor, outputs: Sequence[torch.Tensor], tag: int) -> Steps:
    """Every member ends with everybody's tensor; ``outputs`` by group rank."""
    sends = [group.send(member, mine, tag) for member in group.others]
    receives = [group.receive(member, outputs[member], tag) for member in group.others]
    outputs[group.me].copy_(mine)
    yield sends + receives


def broadcast(group: Group, flat: torch.Tensor, root: int, tag: int) -> Steps:
    """Everybody ends with the root's tensor; in place."""
    if group.me == root:
        yield [group.send(member, flat, tag) for member in group.others]
    else:
        yield [group.receive(root, flat, tag)]


def reduce(group: Group, flat: torch.Tensor, root: int, combine: Combine, tag: int) -> Steps:
    """The root ends with the canonical combination; in place there, untouched elsewhere."""
    if group.me != root:
        cuts = pieces(0, flat.numel(), flat.element_size(), group.piece_bytes)
        yield [group.send(root, flat[a:b], tag) for a, b in cuts]
        return
    yield from _own_slice(group, flat, flat, (0, flat.numel()), combine, tag, share=False)


def gather(group: Group, mine: torch.Tensor, outputs: Sequence[torch.Tensor], root: int, tag: int) -> Steps:
    """The root ends with everybody's tensor; ``outputs`` by group rank, empty elsewhere."""
    if group.me != root:
        yield [group.send(root, mine, tag)]
        return
    outputs[root].copy_(mine)
    yield [group.receive(member, outputs[member], tag) for member in group.others]


def scatter(group: Group, inputs: Sequence[torch.Tensor], output: torch.Tensor, root: int, tag: int) -> Steps:
    """Member i ends with the root's i-th tensor; ``inputs`` by group rank, empty elsewhere."""
    if group.me != root:
        yield [group.receive(root, output, tag)]
        return
    output.copy_(inputs[root])
    yield [group.send(member, inputs[member], tag) for member in group.others]


def all_to_all(
    group: Group, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], tag: int
) -> Steps:
    """Member i ends with everybody's i-th input; sizes may differ."""
    sends = [group.send(member, inputs[member], tag) for member in group.others]
    receives = [group.receive(member, outputs[member], tag) for member in group.others]
    outputs[group.me].copy_(inputs[group.me])
    yield sends + receives


def send(group: Group, flat: torch.Tensor, member: int, tag: int) -> Steps:
    """Send a message to one member."""
    yield [group.pairs.send(member, flat, tag)]


def receive(group: Group, flat: torch.Tensor, member: int, tag: int) -> Steps:
    """Receive a message of this tag from one member."""
    yield [group.pairs.receive(member, flat, tag)]


def receive_any(group: Group, flat: torch.Tensor, tag: int) -> Steps:
    """Receive a message of this tag from whoever sends it; the result is that member's group rank."""
    transfer = group.pairs.receive_any(flat, tag)
    yield [transfer]
    return group.ranks.index(transfer.source)
