"""What happens inside a training process: the script's side of TrainMover.

:mod:`job` is what a script uses; :mod:`live` runs its iterations; :mod:`boundary` agrees with the
other ranks (rules in :mod:`agreement`, state in :mod:`state`, copies in :mod:`transfer`);
:mod:`session` and :mod:`control` connect it to its machine.
"""

from trainmover.training.job import Job, Step, join

__all__ = ["Job", "Step", "join"]
