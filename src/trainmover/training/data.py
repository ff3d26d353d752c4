"""Batches without end out of a loader that can say where it is.

A loader with ``state_dict`` (torchdata's ``StatefulDataLoader``) knows its place within a pass over the data.
What a training job needs around it is the same in every script: the next pass when one is over, in an
order of its own that does not depend on what happened before; and going back, at any moment, to where the
last committed step was.  The iterator that is open then is useless, and a new one is opened at once and not
with the next batch: opening one draws from the random generators, which are put back after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

from trainmover.errors import ConfigError


class DataStream:
    """The batches of a stateful loader, pass after pass.

        data = trainmover.DataStream(StatefulDataLoader(dataset, batch_size=8, shuffle=True, num_workers=2))
        job.track(..., data=data)
        for step in job.steps(1000):
            x, y = next(data)

    Each sample of a pass comes exactly once and in the same order, whatever happens to the machines.
    Samplers that have ``set_epoch`` are told the number of each pass.  A generator that the loader was given
    is seeded anew for each pass; without one the order comes from torch's global generator.

    What workers draw at random while they make a sample is as repeatable as the dataset makes it: derive it
    from the sample's number, or keep it in the dataset's own ``state_dict``.

    Args:
        loader: has ``state_dict`` and ``load_state_dict`` and can be iterated again and again.

    Attributes:
        epoch: number of the pass that is on.
    """

    def __init__(self, loader: Any) -> None:
        if not (hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")):
            raise ConfigError(
                f"a {type(loader).__name__} cannot say where it is: give a loader with state_dict, such as "
                "torchdata's StatefulDataLoader"
            )
        self.loader = loader
        self.epoch = 0
        self._batches: Iterator[Any] | None = None
        generator = getattr(loader, "generator", None)
        self._seed = 0 if generator is None else int(generator.initial_seed())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        """The next batch; the first of the next pass when this one is over.

        Raises:
            ConfigError: a whole pass has no batch.
        """
        if self._batches is None:
            self._open()
        for _ in range(2):
            assert self._batches is not None
            for batch in self._batches:
                return batch
            self.epoch += 1
            self._open()
        raise ConfigError("the loader gives no batches: is its dataset smaller than one batch?")

    next_batch = __next__

    def _open(self) -> None:
        self._batches = None  # its workers end before others begin
        for sampler in (getattr(self.loader, "sampler", None), getattr(self.loader, "batch_sampler", None)):
            set_epoch = getattr(sampler, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(self.epoch)
        generator = getattr(self.loader, "generator", None)
        if generator is not None:
            generator.manual_seed((self._seed + 1_000_003 * self.epoch) % 2**63)
        self._batches = iter(self.loader)

    def state_dict(self) -> dict[str, Any]:
        """Which pass, and where in it; before the first batch a pass is begun, for its order to be known."""
        if self._batches is None:
            self._open()
        return {"epoch": self.epoch, "loader": self.loader.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state`` was taken."""
        self.epoch = state["epoch"]
        self._batches = None
        self.loader.load_state_dict(state["loader"])
        self._open()
