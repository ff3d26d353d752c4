"""Everything that torch can ask of a group, from one core for both roads into torch.

:class:`Collectives` is mixed into the ``ProcessGroup`` subclass (torch 2.6 and newer) and into the
``Backend`` subclass (torch 2.14 and newer).
"""

from __future__ import annotations

from trainmover.ccl.exchanges import Exchanges
from trainmover.ccl.messages import Messages
from trainmover.ccl.reductions import Reductions
from trainmover.ccl.untraced import untraced


@untraced
class Collectives(Reductions, Exchanges, Messages):
    """All collectives and messages of a group."""
