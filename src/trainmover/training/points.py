"""Fault points: the named places of a step and of a switch at which a rank can be hit.

The table of the points is :data:`trainmover.faults.POINTS`; this is who knows when a rank passes one.
What passes points says so with :meth:`Points.hit`; points inside what the user's script calls (its data,
its modules, its optimizer, its collectives) are found by watching the things that it tracks.  A process
without faults watches nothing, and a passed point costs it one comparison.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from trainmover.ccl.communicator import Call, Communicator
from trainmover.ccl.transfer import Transfer
from trainmover.ccl.view import Group
from trainmover.faults import STEP_POINTS, FaultSpec

if TYPE_CHECKING:
    from torch.futures import Future

log = logging.getLogger(__name__)

NO_STEP = -1
FETCHES = ("next_batch", "__next__")
"""Methods that take a batch from tracked data."""
LATER = {
    "vote": ("mirror", "fetch", "forward", "collective"),
    "stepped": ("voting", "optimizer"),
    "joined": ("copy", "copied"),
}
"""Where a fault hits whose point this step, or this switch, did not have."""


class Points:
    """The points that one rank process passes, and the faults that wait there.

    Attributes:
        carry_out: does what a fault says; called on the thread that passes the point.
        last: the point that was passed last, where there are faults.
        committed: number of steps committed; None while this process has no place yet.
    """

    def __init__(self, faults: Sequence[FaultSpec], slot: int) -> None:
        self._faults = [fault for fault in faults if fault.kind != "slow" and fault.slot == slot]
        self._step = NO_STEP
        self._passed: dict[str, int] = {}
        self.last = ""
        self.carry_out: Callable[[FaultSpec], None] = lambda fault: log.error("nobody carries out %s", fault)
        self.committed: Callable[[], int | None] = lambda: None

    def begin(self, step: int) -> None:
        """A live step begins."""
        if self._faults:
            self._step, self._passed = step, {}
            self.hit("step")

    def end(self, committed: bool) -> None:
        """The step's body has ended."""
        if self._faults:
            if committed:
                self.hit("stepped")
            self._step = NO_STEP

    def hit(self, point: str) -> None:
        """This rank is at a point."""
        if not self._faults:
            return
        self.last = point
        self._passed[point] = count = self._passed.get(point, 0) + 1
        for fault in list(self._faults):
            if self._is_due(fault, point, count):
                self._faults.remove(fault)
                self.carry_out(fault)

    def awaited(self, point: str) -> bool:
        """Whether any fault waits at a point."""
        return any(fault.at == point for fault in self._faults)

    def _is_due(self, fault: FaultSpec, point: str, count: int) -> bool:
        if not (fault.at == point and count >= fault.nth) and fault.at not in LATER.get(point, ()):
            return False
        if fault.at in STEP_POINTS:
            return fault.step == self._step
        committed = self.committed()
        return committed is None or committed >= fault.step

    # -- what is passed inside other code ----------------------------------------------------------

    def along(self, group: Group, point: str) -> Group:
        """The group, or one whose walks pass a point with each transfer that they have begun.

        In a vote or a meeting only what is sent counts: a rank that dies having only asked has said nothing.
        """
        return _Passing(group, self, point) if self.awaited(point) else group

    def watch_calls(self, communicator: Communicator) -> None:
        """Pass ``collective`` with each call that has begun."""
        if not self.awaited("collective"):
            return
        run, communicator.short_ways = communicator.run, False

        def watched(name: str, call: Call, key: str | None = None) -> Future[Any]:
            future = run(name, call, key)
            if self._step != NO_STEP and "vote" not in self._passed and self.awaited("collective"):
                communicator.engine.ask(lambda: None)
                self.hit("collective")
            return future

        communicator.run = watched  # type: ignore[method-assign]

    def watch(self, thing: Any) -> None:
        """Pass ``forward``, ``optimizer`` and ``fetch`` in what the script tracks."""
        if isinstance(thing, nn.Module):
            if self.awaited("forward"):
                thing.register_forward_pre_hook(lambda *_: self.hit("forward"))
        elif isinstance(thing, Optimizer):
            if self.awaited("optimizer"):
                self._watch_optimizer(thing)
        elif self.awaited("fetch") and any(hasattr(type(thing), name) for name in (*FETCHES, "__iter__")):
            self._watch_data(thing)

    def _watch_optimizer(self, optimizer: Optimizer) -> None:
        step = optimizer.step

        @functools.wraps(step)
        def watched(*args: Any, **kwargs: Any) -> Any:
            groups = optimizer.param_groups
            optimizer.param_groups = _Groups(groups, self)
            try:
                return step(*args, **kwargs)
            finally:
                optimizer.param_groups = groups

        optimizer.step = watched  # type: ignore[method-assign]

    def _watch_data(self, thing: Any) -> None:
        """By a subclass, as special methods are looked up on the class."""
        kind, points = type(thing), self

        def fetch(name: str) -> Callable[..., Any]:
            def fetched(data: Any, *args: Any, **kwargs: Any) -> Any:
                found = getattr(kind, name)(data, *args, **kwargs)
                points.hit("fetch")
                return found

            return fetched

        def iterated(data: Any) -> Iterator[Any]:
            for batch in kind.__iter__(data):
                points.hit("fetch")
                yield batch

        methods: dict[str, Any] = {name: fetch(name) for name in FETCHES if hasattr(kind, name)}
        if "__next__" not in methods and hasattr(kind, "__iter__"):
            methods["__iter__"] = iterated
        try:
            thing.__class__ = type(kind.__name__, (kind,), methods)
        except TypeError as error:
            log.warning("cannot watch the fetch of %s: %s", kind.__name__, error)


class _Passing(Group):
    """A group that passes a point with each transfer that has begun."""

    def __init__(self, group: Group, points: Points, point: str) -> None:
        super().__init__(
            group.engine,
            group.group,
            group.channel,
            group.ranks,
            group.positions,
            group.me,
            group.absent,
            group.shape,
        )
        # A group is frozen for those who use it.
        object.__setattr__(self, "_points", points)
        object.__setattr__(self, "_point", point)

    def part(self, members: tuple[int, ...]) -> Group:
        return _Passing(super().part(members), self._points, self._point)  # type: ignore[attr-defined]

    def _begun(self, transfer: Transfer, *, sent: bool) -> Transfer:
        if sent or self._point == "copy":  # type: ignore[attr-defined]
            self._points.hit(self._point)  # type: ignore[attr-defined]
        return transfer

    def send_bytes(self, member: int, view: memoryview, tag: int, keep: object) -> Transfer:
        return self._begun(super().send_bytes(member, view, tag, keep), sent=True)

    def receive_bytes(self, member: int, view: memoryview, tag: int, keep: object) -> Transfer:
        return self._begun(super().receive_bytes(member, view, tag, keep), sent=False)

    def receive_up_to(self, member: int, most: int, tag: int) -> Transfer:
        return self._begun(super().receive_up_to(member, most, tag), sent=False)


class _Groups(list[dict[str, Any]]):
    """Parameter groups that pass ``optimizer`` when the first of them is done."""

    def __init__(self, groups: Sequence[dict[str, Any]], points: Points) -> None:
        super().__init__(groups)
        self._points = points

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for index, group in enumerate(super().__iter__()):
            yield group
            if not index:
                self._points.hit("optimizer")
