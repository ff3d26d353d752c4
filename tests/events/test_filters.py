"""What a feed or a listener may ask for."""

from __future__ import annotations

import pytest

from trainmover.events.filters import check_filters, check_types, wanted


def test_areas_and_types():
    """A filter is an area or one type; None is everything."""
    filters = check_filters(["machine", "switch.prepare", "machine"])
    assert filters == ("machine", "switch.prepare")
    names = ["machine.failed", "switch.prepare", "switch.prepared", "job.failed"]
    assert [name for name in names if wanted(filters, name)] == ["machine.failed", "switch.prepare"]
    assert all(wanted(check_filters(None), name) for name in names)


@pytest.mark.parametrize("areas", [["machines"], ["sample"], ["sample.beat"], ["machine.exploded"], ["*"]])
def test_unknown_areas_are_refused(areas):
    """A typo, or an area that is not journalled, would be silence for ever: it is an error."""
    with pytest.raises(ValueError, match="no journalled area or event"):
        check_filters(areas)


def test_listeners_take_unjournalled_types_only():
    """Unknown and journalled types are refused."""
    assert check_types(["sample.beat", "sample.step", "sample.beat"]) == ("sample.beat", "sample.step")
    with pytest.raises(ValueError, match="no event is called"):
        check_types(["sample.beet"])
    with pytest.raises(ValueError, match="read it through a feed"):
        check_types(["machine.failed"])
