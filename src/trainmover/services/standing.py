"""How a machine stands with health: the states of one life, and what moves it from one to another.

What lives here: the table.  What never lives here: what counts as a trigger, and what follows (``health``).
Verdicts are final, and every living state can be failed by proof.
"""

from __future__ import annotations

from enum import StrEnum

from trainmover.services.tables import Table


class Health(StrEnum):
    """State of one life."""

    WELL = "well"
    ASKED = "asked"
    LAPSED = "lapsed"
    SUSPECTED = "suspected"
    FAILED = "failed"
    LEFT = "left"


TABLE: Table[Health] = {
    Health.WELL: {
        "accused": Health.ASKED,
        "rank exited": Health.FAILED,
        "lease expired": Health.LAPSED,
        "lease stalled": Health.FAILED,
        "not reached": Health.FAILED,
        "deserted": Health.FAILED,
        "replaced": Health.FAILED,
        "left": Health.LEFT,
    },
    Health.ASKED: {
        "alive": Health.WELL,
        "silent": Health.SUSPECTED,
        "absent": Health.FAILED,
        "rank exited": Health.FAILED,
        "lease expired": Health.FAILED,
        "lease stalled": Health.FAILED,
        "deserted": Health.FAILED,
        "replaced": Health.FAILED,
        "left": Health.LEFT,
    },
    Health.LAPSED: {
        "alive": Health.WELL,
        "lease returned": Health.WELL,
        "accused": Health.FAILED,
        "silent": Health.FAILED,
        "absent": Health.FAILED,
        "rank exited": Health.FAILED,
        "lease stalled": Health.FAILED,
        "deserted": Health.FAILED,
        "replaced": Health.FAILED,
        "left": Health.LEFT,
    },
    Health.SUSPECTED: {
        "alive": Health.WELL,
        "lease returned": Health.WELL,
        "silent": Health.SUSPECTED,
        "absent": Health.FAILED,
        "rank exited": Health.FAILED,
        "lease expired": Health.FAILED,
        "lease stalled": Health.FAILED,
        "deserted": Health.FAILED,
        "replaced": Health.FAILED,
        "left": Health.LEFT,
    },
    Health.FAILED: {},
    Health.LEFT: {},
}
