"""Fixtures of the cluster tests."""

from __future__ import annotations

import pytest

from tests.cluster.training import STEPS, Outcome, train


@pytest.fixture(scope="package")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The run in which nothing happens."""
    outcome = train(tmp_path_factory.mktemp("undisturbed"), standbys=0)
    assert sorted(outcome.losses) == list(range(STEPS))
    assert outcome.losses[STEPS - 1] < outcome.losses[0] - 1.0
    return outcome
