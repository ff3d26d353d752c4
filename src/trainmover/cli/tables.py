"""What commands print: machines, incidents and figures as rich tables.

What lives here: pure functions from views and reports to renderables.
"""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trainmover.monitor.incidents import IncidentView
from trainmover.monitor.report import Report
from trainmover.monitor.view import ClusterView, MachineView
from trainmover.services.roles import MAX_ROLES, seat_count

STATE_STYLES = {
    "training": "green",
    "starting": "cyan",
    "spare": "cyan",
    "warming": "yellow",
    "parked": "blue",
    "joining": "bold magenta",
    "leaving": "magenta",
    "failed": "bold red",
    "left": "dim",
}
GONE_SHOWN = 4
"""How many machines that are gone a table still shows."""


def seconds(value: float | None) -> str:
    """A duration for a person."""
    if value is None:
        return "-"
    return f"{value * 1000:.0f} ms" if value < 0.1 else f"{value:.2f} s"


def number(value: float | None, digits: int = 2) -> str:
    """A figure for a person."""
    return "-" if value is None else f"{value:.{digits}f}"


def machines_table(view: ClusterView) -> Table:
    """All machines, members first."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("machine", "position", "state"):
        table.add_column(title)
    roles = view.roles.found is not None
    if roles:
        table.add_column("role", overflow="fold")
    for title in ("step", "cpu", "memory"):
        table.add_column(title, justify="right")
    table.add_column("note", overflow="fold")
    listed = view.by_position()
    gone = [machine for machine in listed if not machine.alive]
    hidden = gone[: max(0, len(gone) - GONE_SHOWN)]
    for machine in listed:
        if machine not in hidden:
            name, position, state, *rest = _machine_row(machine)
            table.add_row(name, position, state, *([role_text(view, machine)] if roles else []), *rest)
    if hidden:
        table.add_row(f"and {len(hidden)} more that are gone", style="dim")
    return table


def _machine_row(machine: MachineView) -> tuple[RenderableType, ...]:
    beats = machine.alive and machine.beat is not None
    stopped = "stopped" in machine.ranks
    return (
        machine.name,
        "-" if machine.position is None else str(machine.position),
        Text("frozen" if stopped else machine.state, STATE_STYLES.get(machine.state, "")),
        "-" if machine.step is None else str(machine.step),
        f"{machine.cpu_percent:.0f} %" if beats else "-",
        f"{machine.rss_bytes / 2**20:.0f} MiB" if beats else "-",
        machine.note,
    )


def role_text(view: ClusterView, machine: MachineView) -> str:
    """The role of a member; of a spare, those that it is warm in."""
    role = view.roles.at(machine.position)
    if role is not None:
        return role.name
    if not machine.alive or not machine.warmth.asked:
        return "-"
    parked, coming = ", ".join(machine.warmth.parked), ", ".join(machine.warmth.under_way)
    return "; ".join(part for part in (parked, f"warming {coming}" if coming else "") if part)


def role_lines(view: ClusterView) -> list[Text]:
    """Which roles there are, and what no standby can do."""
    found, total = view.roles.found, view.roles.total
    if found is None:
        return []
    machines = sum(seat_count(role) for role in found.roles) + found.unlisted
    covered = min(MAX_ROLES, len(found.roles) - len(view.roles.failed))
    lines = []
    if total == machines > 1:
        text = f"no general standby is possible: all {machines} machines have roles of their own"
        lines.append(Text(f"{text}; a standby covers {covered} of them", "yellow"))
    elif total <= MAX_ROLES:
        names = ", ".join(f"{role.name} ({_machines(seat_count(role))})" for role in found.roles)
        lines.append(Text(f"roles: {names}"))
    else:
        lines.append(
            Text(f"{total} roles on {machines} machines; a standby covers {covered} of them", "yellow")
        )
    lines += [
        Text(f"no standby can be warm in the role {role}: {reason}", "yellow")
        for role, reason in view.roles.failed.items()
    ]
    return lines


def state_lines(view: ClusterView) -> list[Text]:
    """What the loss of a machine would cost, once that is known."""
    cost = view.protection.cost(None if view.step is None else view.step + 1)
    return [Text(f"state: {cost}", "" if "costs no step" in cost else "yellow")] if cost else []


def _machines(count: int) -> str:
    return "1 machine" if count == 1 else f"{count} machines"


def size(count: float) -> str:
    """A number of bytes for a person."""
    units = ["KiB", "MiB", "GiB", "TiB"]
    unit = "B"
    while count >= 1024 and units:
        count, unit = count / 1024, units.pop(0)
    return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"


def progress_line(view: ClusterView) -> Text:
    """Step, loss, rate and epoch on one line."""
    parts: list[str] = [view.phase]
    if view.step is not None:
        parts.append(f"step {view.step}")
    parts += [f"{name} {value:.4f}" for name, value in sorted(view.metrics.items())][:3]
    rate = view.steps_per_second
    if rate is not None:
        parts.append(f"{rate:.2f} steps/s")
    parts.append(f"epoch {view.epoch}")
    return Text("  ".join(parts), "bold")


def incident_lines(view: ClusterView, now: float | None = None) -> list[Text]:
    """One line per incident, the open ones with what is happening in them."""
    return [incident_line(incident, now) for incident in view.incidents.values()]


def incident_line(incident: IncidentView, now: float | None = None) -> Text:
    """Who goes and who comes, and how far it is."""
    who = f"{incident.kind} of {incident.machine}"
    if incident.joiner:
        who += f", {incident.joiner} takes over"
    if incident.state == "open":
        since = "" if now is None else f" ({now - incident.times['opened']:.1f} s)"
        return Text(f"{who}: {incident.doing}{since}", "bold yellow")
    if incident.state == "closed":
        return Text(f"{who}: over after {seconds(incident.between('opened', 'resumed'))}", "green")
    return Text(f"{who}: {incident.doing}", "red" if incident.state == "refused" else "dim")


def incidents_table(report: Report) -> Table:
    """The table at the end of a run."""
    # Twelve columns in the 80 characters of a terminal: no rules, one space between.
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold underline")
    table.add_column("incident", no_wrap=True)
    table.add_column("who", no_wrap=True)
    for title in ("at", "detect", "plan", "prepare", "copy", "switch", "downtime", "steps", "lost", "void"):
        table.add_column(title, justify="right", no_wrap=True)
    for incident in report.incidents:
        phases = incident.phases
        table.add_row(
            incident.kind,
            f"{incident.machine}→{incident.joiner or ('none' if incident.kind == 'shrink' else '?')}",
            "-" if incident.step is None else str(incident.step),
            *(seconds(phases[name]) for name in ("detect", "plan", "prepare", "copy", "switch")),
            seconds(incident.downtime_seconds),
            number(incident.downtime_steps),
            str(incident.steps_lost),
            str(incident.attempts_void),
        )
    return table


def report_group(report: Report) -> Group:
    """Everything that a person wants to know of a finished run."""
    growth = report.stayer_peak_memory_growth
    figures = [
        f"{report.steps} steps, median step {seconds(report.median_step_seconds)}",
        f"digest {report.digest or 'none: the job did not complete'}",
    ]
    if report.reduced_steps:
        figures.append(f"{report.reduced_steps} steps while a replica was paused")
    if report.joiner_first_step_ratio is not None:
        figures.append(f"a joiner's first step took {number(report.joiner_first_step_ratio)} median steps")
    if growth is not None:
        figures.append(f"a stayer's peak memory grew by {growth:.1%} at most")
    if report.state.get("a_loss"):
        figures.append(f"state: {report.state['a_loss']}")
    if report.recordings:
        sizes = ", ".join(f"{role} {size(count)}" for role, count in report.recordings.items())
        figures.append(f"recordings: {sizes}")
    parts: list[RenderableType] = [Text(line) for line in figures]
    parts += [Text(f"warning: {problem}", "bold red") for problem in report.problems]
    if report.incidents:
        parts.insert(0, incidents_table(report))
    return Group(*parts)
