"""What happens inside a training process: the script's side of TrainMover.

:mod:`job` is what a script uses; :mod:`live` runs its iterations; :mod:`boundary` agrees with the
other ranks (rules in :mod:`agreement`, state in :mod:`state`, copies in :mod:`handover` and
:mod:`transfer`); :mod:`session` and :mod:`control` connect it to its machine.  :mod:`describe` says what
a rank is; :mod:`shadow` warms up a standby, which takes its place by :mod:`places` and
:mod:`promotion`.  :mod:`resume` makes checkpoints (:mod:`checkpoint`, in :mod:`attempt`, of :mod:`pieces`,
on the :mod:`shelf`) and goes on from them (:mod:`restore`); :mod:`data` is for scripts.
"""

from trainmover.training.data import DataStream
from trainmover.training.job import Job, Step, join

__all__ = ["DataStream", "Job", "Step", "join"]
