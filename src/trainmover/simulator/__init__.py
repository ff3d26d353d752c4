"""The simulator: the control plane in virtual time, with seeded faults.

The services' real shells and cores run on a loop without a clock (``clock``) and a bus without a network
(``bus``); machines, ranks and training are small models (``machines``, ``ranks``, ``training``).  A seed
decides what goes wrong (``setup``, ``faults``); what must hold is checked at every event (``watch``) and at
the end (``run``).  No torch here.
"""

from trainmover.simulator.many import simulate_many
from trainmover.simulator.run import Outcome, simulate
from trainmover.simulator.setup import Setup, draw

__all__ = ["Outcome", "Setup", "draw", "simulate", "simulate_many"]
