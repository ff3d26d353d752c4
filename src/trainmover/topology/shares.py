"""Shares: who computes which part of the global batch, when some data-parallel replicas are absent.

At full strength each member of a data-parallel group computes ``parts`` shares of the batch, all its own:
member m has the shares ``m * parts`` to ``m * parts + parts - 1``.  The shares of absent members are dealt to
the present ones: one after the other, each to a member that has the fewest so far, and among these to the one
that is nearest in the canonical bracketing.  So the load is even, and one share goes to the sibling of the
member that would have computed it: its sum with the sibling's own is then one that the bracketing has anyway,
and the bits of a reduction are those of full strength.

A pure function of the group, so that all ranks of a replica deal alike, each in its own group.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache

from trainmover.errors import ConfigError
from trainmover.topology.bracket import Bracket, bracket


def shares_of(
    member: int, positions: tuple[int, ...], absent: Collection[int], parts: int
) -> tuple[int, ...]:
    """The shares that one member of a data-parallel group computes, ascending.

    Args:
        member: its group rank.
        positions: position of each member's machine, by group rank.
        absent: group ranks of the members that are not there.
        parts: shares of one member at full strength.

    Raises:
        ConfigError: there is no such member, it is absent, or ``parts`` is less than 1.
    """
    if parts < 1:
        raise ConfigError(f"a member of a data-parallel group has one share or more, not {parts}")
    if not 0 <= member < len(positions) or member in absent:
        raise ConfigError(f"member {member} of {len(positions)} is not there to compute a share")
    if not absent:
        return tuple(range(member * parts, (member + 1) * parts))
    return _dealt(positions, tuple(sorted(set(absent))), parts)[member]


@cache
def _dealt(positions: tuple[int, ...], absent: tuple[int, ...], parts: int) -> dict[int, tuple[int, ...]]:
    """All shares, by the present member that computes them."""
    away = set(absent)
    found = {
        member: list(range(member * parts, (member + 1) * parts))
        for member in range(len(positions))
        if member not in away
    }
    tree = bracket(positions)
    for owner in absent:
        near = _nearness(tree, owner)
        for share in range(owner * parts, (owner + 1) * parts):
            taker = min(found, key=lambda member: (len(found[member]), -near[member], member))
            found[taker].append(share)
    return {member: tuple(sorted(shares)) for member, shares in found.items()}


def _nearness(tree: Bracket, leaf: int) -> dict[int, int]:
    """For each other leaf, how many brackets hold both it and this one: more is nearer."""
    found: dict[int, int] = {}
    depth = 0
    while isinstance(tree, tuple):
        depth += 1
        left, right = _leaves(tree[0]), _leaves(tree[1])
        tree, others = (tree[0], right) if leaf in left else (tree[1], left)
        found.update(dict.fromkeys(others, depth))
    return found


def _leaves(tree: Bracket) -> set[int]:
    return {tree} if isinstance(tree, int) else _leaves(tree[0]) | _leaves(tree[1])
