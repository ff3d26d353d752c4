"""TrainMover: replace a machine inside a running synchronous training job.

``import trainmover`` is cheap and needs no torch; ``trainmover.join`` and
``trainmover.register_backend`` load the torch side on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmover.version import __version__

if TYPE_CHECKING:
    from trainmover.training import DataStream, Job, Step, join

__all__ = ["DataStream", "Job", "Step", "__version__", "join", "register_backend"]


def register_backend() -> None:
    """Make ``torch.distributed.init_process_group("trainmover", ...)`` work in any script."""
    from trainmover.ccl.backend import register

    register()


def __getattr__(name: str) -> Any:
    if name in ("DataStream", "Job", "Step", "join"):
        from trainmover import training

        return getattr(training, name)
    raise AttributeError(f"module 'trainmover' has no attribute {name!r}")
