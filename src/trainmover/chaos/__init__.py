"""Chaos: real runs in which everything goes wrong that may, and what they must have come to.

A *campaign* is one undisturbed run and then many disturbed ones (``campaign``).  What goes wrong in one of
them is its *plan*, drawn from its seed (``plan``): *faults* that a rank carries out at a named point
(``trainmover.faults``) and *troubles* of what is round it: services, the bus, the network, the disk, clocks.
Each run is a process of its own (``round``), in which ``hands`` carries the troubles out, on ``ground`` that
can be troubled: networks (``network``), a small disk (``disk``), clocks.  When it has ended, ``judge`` says
whether it is what it was to be.

The simulator (``trainmover.simulator``) does the same to the control plane alone, in virtual time.
"""
