"""What a feed or a listener asks for: areas and type names, checked before anything is sent.

What lives here: pure functions on names.  A filter of a feed is an area (``machine``: all its
events) or one type (``switch.prepare``), so that a program on every machine need not hear what
each of a hundred thousand ranks says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trainmover.events.catalogue import EVENTS


def check_filters(areas: Sequence[str] | None) -> tuple[str, ...] | None:
    """The areas (``machine``) and type names (``switch.prepare``) that a feed asks for, checked.

    Raises:
        ValueError: one of them is neither, or names an un-journalled event.
    """
    if areas is None:
        return None
    known = {name for name, model in EVENTS.items() if model.journalled}
    known |= {name.partition(".")[0] for name in known}
    unknown = sorted(set(areas) - known)
    if unknown:
        raise ValueError(f"no journalled area or event is called {', '.join(unknown)}")
    return tuple(dict.fromkeys(areas))


def check_types(types: Iterable[str]) -> tuple[str, ...]:
    """Type names of un-journalled events, checked.

    Raises:
        ValueError: one of them is unknown or journalled.
    """
    names = tuple(dict.fromkeys(types))
    for name in names:
        if name not in EVENTS:
            raise ValueError(f"no event is called {name!r}")
        if EVENTS[name].journalled:
            raise ValueError(f"{name} is journalled: read it through a feed")
    return names


def wanted(filters: tuple[str, ...] | None, name: str) -> bool:
    """Whether an event of this type passes a feed's filters."""
    return filters is None or name in filters or name.partition(".")[0] in filters
