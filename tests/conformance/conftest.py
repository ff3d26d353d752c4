"""What the conformance tests load of torch, with its own warnings."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # some of torch's packages use what torch itself deprecates
    import torch.distributed.fsdp
    import torch.distributed.optim
    import torch.distributed.pipelining
    import torch.distributed.tensor.parallel  # noqa: F401
