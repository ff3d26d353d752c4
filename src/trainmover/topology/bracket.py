"""The canonical bracketing: which partial sums are added to which.

Floating-point addition is not associative, so the bits of a reduction depend on its brackets.
Here the brackets follow from the ranks alone, inside a machine first and then across, as a
balanced binary tree: never from the algorithm, the chunking, the message size or the topology.
Every reduction walk must follow it; :func:`reduce_in_order` is the reference.

Where seats are vacant the bracketing stays what it was and the members that are absent are left out of it:
what they would have been combined with goes up as it is (:func:`restricted`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeVar

T = TypeVar("T")

Bracket = int | tuple["Bracket", "Bracket"]
"""A member's index, or a pair of brackets: the left partial result is combined with the right."""


@cache
def bracket(positions: tuple[int, ...]) -> Bracket:
    """The bracketing of a group.

    Args:
        positions: for each member of the group, by group rank, the position of its machine.

    Returns:
        A tree over the member indices ``0 .. len(positions) - 1``.
    """
    if not positions:
        raise ValueError("a group has at least one member")
    return _balanced([_balanced(cell) for cell in cells(positions)])


@cache
def cells(positions: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The members by machine, machines in the order in which the group meets them."""
    by_machine: dict[int, list[int]] = {}
    for member, position in enumerate(positions):
        by_machine.setdefault(position, []).append(member)
    return tuple(tuple(members) for members in by_machine.values())


def _balanced(parts: Sequence[Bracket]) -> Bracket:
    if len(parts) == 1:
        return parts[0]
    middle = (len(parts) + 1) // 2
    return (_balanced(parts[:middle]), _balanced(parts[middle:]))


def leader(tree: Bracket) -> int:
    """The member that holds a partial result: the leftmost of its bracket."""
    while isinstance(tree, tuple):
        tree = tree[0]
    return tree


@cache
def restricted(tree: Bracket, members: tuple[int, ...]) -> Bracket:
    """The bracketing without all leaves but ``members``, which are numbered anew, in their order.

    Raises:
        ValueError: none is left, or one of them is no leaf.
    """
    numbers = {member: number for number, member in enumerate(members)}
    found = 0

    def cut(part: Bracket) -> Bracket | None:
        nonlocal found
        if isinstance(part, int):
            found += part in numbers
            return numbers.get(part)
        left, right = cut(part[0]), cut(part[1])
        if left is None or right is None:
            return right if left is None else left
        return (left, right)

    kept = cut(tree)
    if kept is None or found != len(members):
        raise ValueError(f"members {members} are not leaves of the bracketing {tree}")
    return kept


def merges(positions: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """The merges of a group's bracketing; see :func:`merges_of`."""
    return merges_of(bracket(positions))


@cache
def merges_of(tree: Bracket) -> tuple[tuple[int, int], ...]:
    """The bracketing as a list of merges ``(into, from)``, in an order that can be carried out.

    Member ``from``'s partial result is combined into member ``into``'s, left operand first.
    After the last merge the member ``leader(tree)`` holds the whole result.
    """
    steps: list[tuple[int, int]] = []

    def walk(part: Bracket) -> int:
        if isinstance(part, int):
            return part
        left, right = walk(part[0]), walk(part[1])
        steps.append((left, right))
        return left

    walk(tree)
    return tuple(steps)


def reduce_in_order(positions: tuple[int, ...], values: Sequence[T], combine: Callable[[T, T], T]) -> T:
    """The reference reduction: combine ``values`` (by group rank) in the canonical bracketing."""
    return reduce_along(bracket(positions), values, combine)


def reduce_along(tree: Bracket, values: Sequence[T], combine: Callable[[T, T], T]) -> T:
    """Combine ``values`` (by leaf) in this bracketing."""
    partial = list(values)
    for into, source in merges_of(tree):
        partial[into] = combine(partial[into], partial[source])
    return partial[leader(tree)]
