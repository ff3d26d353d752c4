"""What the tests of the services share: ``kit``, with all that makes events, benches, plants and worlds.

``words`` has the events, ``bench`` one core by hand, ``plant`` machines that are not there, ``world`` the
plant with all four cores in virtual time.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.services import bench, plant, words, world


@pytest.fixture(scope="session")
def kit() -> SimpleNamespace:
    """Makers of events, benches and worlds."""
    rooms = (vars(room) for room in (words, bench, plant, world))
    return SimpleNamespace(**{name: it for room in rooms for name, it in room.items() if name[0] != "_"})
