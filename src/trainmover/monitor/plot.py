"""The loss curve as a picture, with the incidents marked. Needs matplotlib (``trainmover[plot]``)."""

from __future__ import annotations

from pathlib import Path

from trainmover.errors import ConfigError
from trainmover.monitor.report import Report, reduced
from trainmover.monitor.view import Membership

COLOURS = {"failure": "#c0392b", "move": "#2471a3", "shrink": "#b9770e", "grow": "#1e8449"}


def draw_losses(report: Report, path: Path) -> None:
    """Draw the loss of every step, a line per incident, and where seats were vacant, into a PNG.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError(
            "the loss curve needs matplotlib: pip install 'trainmover[plot]'; all else is written"
        ) from None
    # The object interface and not pyplot: no display, no global state, nothing to close.
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    known = [(step, loss) for step, loss in enumerate(report.losses) if loss is not None]
    axes.plot([step for step, _ in known], [loss for _, loss in known], color="#34495e", linewidth=1.4)
    told: set[str] = set()
    memberships = [Membership(**membership) for membership in report.memberships]
    for number, (first, last) in enumerate(reduced(memberships, report.steps)):
        label = None if number else "reduced strength"
        axes.axvspan(first, last, color=COLOURS["shrink"], alpha=0.12, linewidth=0, label=label)
        told.add("reduced strength")
    top = axes.get_ylim()[1]
    for incident in report.incidents:
        if incident.step is None:
            continue
        colour = COLOURS.get(incident.kind, "#7f8c8d")
        label = None if incident.kind in told else incident.kind
        told.add(incident.kind)
        axes.axvline(incident.step, color=colour, linestyle="--", linewidth=1.2, label=label)
        took = f" {incident.downtime_seconds:.2f} s" if incident.downtime_seconds is not None else ""
        axes.annotate(
            f"{incident.machine}→{incident.joiner or ('none' if incident.kind == 'shrink' else '?')}{took}",
            (incident.step, top),
            xytext=(3, -3),
            textcoords="offset points",
            rotation=90,
            va="top",
            fontsize=8,
            color=colour,
        )
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    axes.set_title(f"{report.steps} steps, {len(report.incidents)} incidents, seed {report.seed}")
    axes.grid(alpha=0.25)
    if told:
        axes.legend(loc="upper right", frameon=False)
    figure.savefig(path, dpi=130)
