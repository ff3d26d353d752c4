"""The signature of a rank: what it calls, so that ranks that do the same are recognised.

What enters: the process groups by the order in which they were made and their sizes, and for each the
calls in the order in which they were made, with all that must be the same on both ranks: the
collective and its arguments.  Messages enter by direction, tag and the peer as a distance in the group,
with their number but not their order: a pipeline schedule (1F1B) sends and receives in another order
at each depth, and what a stage does is the same.  At last the schema of the tracked state.  What does not
enter: ranks, names of groups, places in groups.  So the replicas of a data-parallel job have one
signature, and all middle stages of a pipeline, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainmover.ccl.calls import Call, GroupInfo
from trainmover.ccl.tags import MESSAGE


@dataclass(frozen=True, slots=True)
class Seen:
    """One call of a group: the how-many-th, and in words."""

    group: int
    number: int
    words: str
    message: bool


def seen(group: GroupInfo, call: Call, me: int) -> Seen:
    """What of a call enters the signature.

    Args:
        group: the call's group.
        call: a call that has been carried out.
        me: own group rank.
    """
    message = call.name == MESSAGE
    words = f"{call.name} ({call.detail})"
    if message:
        words = f"{'receive' if call.peer is None else 'send'} {call.detail} {distance(group, call, me)}"
    return Seen(group.ordinal, call.number, words, message)


def distance(group: GroupInfo, call: Call, me: int) -> str:
    """How far the peer of a message is from this rank in the group: the same on ranks with the same role."""
    other = call.source if call.peer is None else call.peer
    return "any" if other is None else f"+{(other - me) % len(group.ranks)}"


def _order(item: Seen) -> tuple[int, bool, str, int]:
    """Collectives as they were made; then the messages, those of one kind together."""
    return item.group, item.message, item.words if item.message else "", item.number


def signature(sizes: Sequence[int], phases: Iterable[Iterable[Seen]], schema: str) -> str:
    """The signature, as SHA-256 in hex.

    Args:
        sizes: of the groups, by ordinal.
        phases: for each phase the calls, in any order.
        schema: digest of the tracked tensors' names, dtypes and shapes.
    """
    found = hashlib.sha256()
    lines = [f"group {ordinal} of {size}" for ordinal, size in enumerate(sizes)]
    for number, calls in enumerate(phases):
        ordered = sorted(calls, key=_order)
        lines += [f"phase {number} group {item.group}: {item.words}" for item in ordered]
    lines.append(schema)
    found.update("\n".join(lines).encode())
    return found.hexdigest()
