"""Tables of states, and how they are drawn.

A core's decisions are literal dicts: ``{state: {trigger: next state}}``.  What lives here is the
little that all tables share: moving along one, checking that one is whole, drawing one as a
Mermaid state diagram, so that the picture in the docs is the table in the code, and watching what
is taken.

Two rules (they are h11's).  A trigger that a state's row does not have means nothing in that
state: it is not an error, because events may come twice or late.  And rows are read from the
top: when several triggers hold at once, the one written first wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import TypeVar

S = TypeVar("S", bound=StrEnum)

Moved = tuple[StrEnum, str, StrEnum]
"""A transition that was taken: from which state, by which trigger, to which state."""

_watchers: list[list[Moved]] = []

Table = Mapping[S, Mapping[str, S]]
"""``{state: {trigger: next state}}``."""

Conditions = Mapping[str, Callable[[], bool]]
"""Whether a trigger holds right now."""


def after(table: Table[S], state: S, trigger: str) -> S | None:
    """The state that a trigger leads to; None when it means nothing in this state."""
    target = table[state].get(trigger)
    if _watchers and target is not None:
        _watchers[-1].append((state, trigger, target))
    return target


def first_trigger(table: Table[S], state: S, holds: Conditions) -> str | None:
    """The topmost trigger of the state's row that holds, if one does.

    Triggers without a condition are driven by events, not by facts, and are passed over.
    """
    for trigger in table[state]:
        condition = holds.get(trigger)
        if condition is not None and condition():
            if _watchers:
                _watchers[-1].append((state, trigger, table[state][trigger]))
            return trigger
    return None


@contextmanager
def watched() -> Iterator[list[Moved]]:
    """The transitions that are taken inside, in order: for a replay that explains; nothing decides by it."""
    moves: list[Moved] = []
    _watchers.append(moves)
    try:
        yield moves
    finally:
        _watchers.pop()


def check(table: Table[S], states: type[S]) -> None:
    """See that a table has a row for every state and leads to none but these.

    Raises:
        ValueError: it has not, or does.
    """
    missing = [state for state in states if state not in table]
    if missing:
        raise ValueError(f"{states.__name__}: no row for {', '.join(missing)}")
    strangers = {target for row in table.values() for target in row.values()} - set(states)
    if strangers:
        raise ValueError(f"{states.__name__}: rows lead to {', '.join(sorted(strangers))}")


def mermaid(table: Table[S], start: S) -> str:
    """The table as a Mermaid state diagram (``stateDiagram-v2``), rows in the order written."""
    lines = ["stateDiagram-v2", f"    [*] --> {_node(start)}"]
    for state, row in table.items():
        lines += [f"    {_node(state)} --> {_node(target)}: {trigger}" for trigger, target in row.items()]
        if not row:
            lines.append(f"    {_node(state)} --> [*]")
    return "\n".join(lines) + "\n"


def markdown(table: Table[S]) -> str:
    """The table as Markdown: one line per transition."""
    lines = ["| state | trigger | next state |", "|---|---|---|"]
    for state, row in table.items():
        lines += [f"| {state} | {trigger} | {target} |" for trigger, target in row.items()]
        if not row:
            lines.append(f"| {state} | | (the end) |")
    return "\n".join(lines) + "\n"


def _node(state: StrEnum) -> str:
    return state.value.replace(" ", "_")
