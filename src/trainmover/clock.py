"""The clock that programs read: the computer's, and how wrong a chaos run has made it.

What lives here: one function.  Clocks of several computers differ and are set; nothing that is decided may
depend on them (deadlines run on monotonic clocks, events are ordered by the log).  So that this can be
tried on one computer, a program whose environment names a file in ``TRAINMOVER_CLOCK`` adds the seconds
that are written there, from the moment at which they are.  Without that variable this is ``time.time``.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

VARIABLE = "TRAINMOVER_CLOCK"


class Clock:
    """Unix seconds, and an offset out of a file that may change at any time.

    Args:
        file: what has the offset in seconds; None, or a file that is not there: no offset.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._seen: tuple[int, int] | None = None
        self._offset = 0.0

    def now(self) -> float:
        """Unix seconds, as this program believes."""
        if self._file is not None:
            self._look(self._file)
        return time.time() + self._offset

    def _look(self, file: Path) -> None:
        try:
            found = file.stat()
            seen = (found.st_mtime_ns, found.st_ino)
            if seen != self._seen:
                self._offset, self._seen = float(file.read_text("ascii")), seen
        except (OSError, ValueError):
            return


def _from_environment() -> Clock:
    name = os.environ.get(VARIABLE)
    return Clock(Path(name) if name else None)


now = _from_environment().now
"""Unix seconds, as this program believes."""
