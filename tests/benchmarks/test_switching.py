"""The benchmark of switches measures what it says."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import switching


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_rows_tell_of_real_switches() -> None:
    """A small world changes a member in both ways; its processes train beside a prepare, and vote."""
    row = switching.measure_swap(4, repeats=1)
    assert (row["ranks"], row["gloo_reconfigure_seconds"]) == (4, 0.026)
    assert row["most_links_swapped"] == 3 * 3, "boundary, data and tensor group, to three ranks"
    assert row["cpu_seconds"] > 0
    assert 0 < row["seconds"] <= row["worst_seconds"]
    assert min(row["alone_seconds"], row["meeting_seconds"], row["prepare_seconds"]) > 0


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_steps_and_votes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps beside a prepare are as many as prepares, others are beside them; a vote has its three costs."""
    monkeypatch.setattr(switching, "STEP_SECONDS", 0.02)
    monkeypatch.setattr(switching, "VOTERS", 2)
    row = switching.measure_prepare(3)
    assert row["steps_during"] == 3
    assert row["steps_quiet"] > 0
    assert row["ratio"] == row["during_seconds"] / row["quiet_seconds"]
    vote = switching.measure_vote(batches=2, count=5)
    assert 0 < vote["fastest_collective_seconds"] <= vote["collective_seconds"] <= vote["seconds"]
    assert 0 < vote["collective_cpu_seconds"] <= vote["cpu_seconds"]
    assert min(vote["slowest_seconds"], vote["step_seconds"]) > 0


def rows(
    swap: float = 0.01, cpu: float = 0.001, ratio: float = 1.0, vote: float = 0.0005
) -> list[dict[str, Any]]:
    """What a run measures, as far as the summary reads it."""
    sizes = [
        {"part": "swap", "ranks": ranks, "seconds": 0.001, "cpu_seconds": 0.001} for ranks in switching.SIZES
    ]
    sizes[-1].update(seconds=swap, cpu_seconds=cpu)
    return [*sizes, {"part": "prepare", "ratio": ratio}, {"part": "vote", "step_seconds": vote}]


def test_the_summary_holds_the_figures_against_their_limits() -> None:
    """Each of the four figures is over its limit by itself."""
    good = switching.summarize(rows())
    assert good["swap_max_seconds"] == 0.01
    assert good["swap_growth_ratio"] == 1.0
    assert all(good["within_limits"].values())
    for name, wrong in (
        ("swap_max_seconds", rows(swap=0.021)),
        ("swap_growth_ratio", rows(cpu=0.0021)),
        ("prepare_step_ratio", rows(ratio=1.06)),
        ("vote_seconds", rows(vote=0.0011)),
    ):
        within = switching.summarize(wrong)["within_limits"]
        assert [key for key, value in within.items() if not value] == [name]
