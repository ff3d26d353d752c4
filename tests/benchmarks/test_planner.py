"""The planner's benchmark measures what it says."""

from __future__ import annotations

from typing import Any

from benchmarks import planner


def test_a_row_tells_of_a_whole_decision() -> None:
    """A small job is brought up and changed; the row has its groups, its links and its times."""
    row = planner.measure(64, repeats=3)
    assert (row["ranks"], row["machines"], row["endpoints"]) == (64, 8, 64)
    assert row["groups"] == 64 // 2 + 64 // 4 + 64 // 8 + 1
    assert 0 < row["links_changed"] < row["links_total"]
    assert row["delta_seconds"] > 0
    assert 0 < row["seconds"] <= row["slowest_seconds"]


def test_dimensions_make_up_the_world() -> None:
    """At every size the three dimensions multiply to the number of ranks."""
    for ranks in (*planner.SIZES, *planner.QUICK_SIZES):
        (_, pipeline), (_, data), (_, tensor) = planner.dims_of(ranks)
        assert pipeline * data * tensor == ranks
        assert pipeline >= 2


def test_the_summary_holds_both_sizes_against_the_limits() -> None:
    """Too slow, or growing with the job, is over a limit."""

    def rows(small: float, large: float, delta: float = 0.001) -> list[dict[str, Any]]:
        return [
            {"ranks": 1024, "seconds": small, "delta_seconds": 0.001},
            {"ranks": 131072, "seconds": large, "delta_seconds": delta},
        ]

    good = planner.summarize(rows(0.002, 0.003))
    assert (good["seconds_1024"], good["seconds_131072"], good["within_limit"]) == (0.002, 0.003, True)
    assert not planner.summarize(rows(0.06, 0.11))["within_limit"]
    assert not planner.summarize(rows(0.002, 0.005))["within_limit"]
    assert not planner.summarize(rows(0.002, 0.003, delta=0.0025))["within_limit"]
