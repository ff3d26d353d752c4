"""A sign of life for whoever runs a program in a container: a file that stays fresh.

What lives here: touching it.  What never lives here: who looks at it (a health check, by its age).

The file is touched while the program's loop turns and its connection to the bus stands, so a program
that hangs, or that cannot reach the bus, lets it grow old.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from trainmover.events.bus import Bus
from trainmover.events.tasks import check_cancelled, end_tasks

VARIABLE: Final = "TRAINMOVER_ALIVE_FILE"
"""Environment variable with the file's path; unset or empty: there is none."""

SECONDS: Final = 3.0
"""Between two touches; a health check should allow for several."""


@contextlib.asynccontextmanager
async def shown_alive(bus: Bus) -> AsyncIterator[None]:
    """Keep the file fresh inside the block, if one is asked for; it is removed at the end."""
    path = Path(os.environ.get(VARIABLE) or os.devnull)
    if str(path) == os.devnull:
        yield
        return
    task = asyncio.create_task(_touch(bus, path))
    try:
        yield
    finally:
        await end_tasks([task])
        _remove(path)


async def _touch(bus: Bus, path: Path) -> None:
    while True:
        check_cancelled()
        if bus.connected_for > 0:
            _refresh(path)
        await asyncio.sleep(SECONDS)


def _refresh(path: Path) -> None:
    # Where it cannot be written it grows old, which is what there is to say.
    with contextlib.suppress(OSError):
        path.touch()


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
