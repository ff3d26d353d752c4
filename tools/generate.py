"""Write what follows from the code: the contract, the services' subjects, the drawings, what tests leave out.

``make contract`` runs it; ``--check`` writes nothing and fails when a file is not what it would
write (a test does that).  The contract in ``events`` (as ``trainmover events contract`` writes it) and
``services/*/service.toml`` are written whole; in Markdown only what stands between
``<!-- generated: NAME -->`` and ``<!-- end -->`` is.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from trainmover.access.permissions import permissions
from trainmover.access.roles import ROLES, Role
from trainmover.events import contract
from trainmover.events.catalogue import EVENTS
from trainmover.services import gaps, health, planner, spares, standby, switcher
from trainmover.services.core import Decider
from trainmover.services.tables import mermaid

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # its neighbour is found too where this file is run by its name

CORES: tuple[type[Decider], ...] = (
    health.HealthCore,
    standby.StandbyCore,
    planner.PlannerCore,
    switcher.SwitcherCore,
)

DRAWINGS = {
    "health": {"The life of a machine": mermaid(health.TABLE, health.Health.WELL)},
    "standby": {
        "The life of a spare": mermaid(spares.SPARES, spares.Spare.JOINED),
        "The life of a gap": mermaid(gaps.GAPS, gaps.Gap.OPEN),
    },
    "planner": {"The planner's phases": mermaid(planner.TABLE, planner.Phase.IDLE)},
    "switcher": {"The switch": mermaid(switcher.TABLE, switcher.Switch.IDLE)},
}


RESOURCES = {"cpus": 0.5, "memory_mib": 256}
"""Limits of a service's container; deployments are held to them by a test."""


def service_toml(core: type[Decider]) -> str:
    """What a deployment must know about a service."""

    def subjects(types: Iterator[str]) -> str:
        return listed(f"trainmover.<job>.{name}" for name in set(types))

    return (
        f"# Written by tools/generate.py from src/trainmover/services/{core.name}.py; not by hand.\n\n"
        f'name = "{core.name}"\n'
        'image = "trainmover-services"\n'
        f'command = ["trainmover", "service", "{core.name}", "--bus", "<address>", "--job", "<job>"]\n'
        f"cpus = {RESOURCES['cpus']}\nmemory_mib = {RESOURCES['memory_mib']}\n\n"
        "# Events that the core takes in, and those that it answers with. Beside them the shell says\n"
        "# timer.fired, journal.entry, journal.copy (an input that its sender could not store)\n"
        "# and dead.letter, and reads the log with JetStream's direct get.\n"
        f"hears = {subjects(model.type for model in core.HEARS)}"
        f"says = {subjects(model.type for model in core.SAYS)}"
        f"\n{permissions_toml(core.name)}"
    )


def role_toml(role: Role) -> str:
    """What a deployment must know about a role that is no service of the four."""
    return (
        "# Written by tools/generate.py from src/trainmover/access/roles.py; not by hand.\n\n"
        f'name = "{role.name}"\nabout = "{role.about}"\n\n{permissions_toml(role.name)}'
    )


def permissions_toml(role: str) -> str:
    """What a role's user may do on the bus."""
    may = permissions(ROLES[role], "JOB")
    return (
        "# What its user on the bus may do; `trainmover credentials` tells it to the server.\n"
        f"[permissions]\npublish = {listed(map(in_any_job, may.publish))}"
        f"subscribe = {listed(map(in_any_job, may.subscribe))}"
        f"responses = {str(may.responses).lower()}\n"
    )


def in_any_job(subject: str) -> str:
    """A subject of the job JOB, with a mark in the place of that name."""
    return re.sub(r"\bJOB\b|(?<=TRAINMOVER_)JOB", "<job>", subject)


def listed(names: Iterable[str]) -> str:
    """A TOML array, sorted, one name a line."""
    return "[\n" + "".join(f'    "{name}",\n' for name in sorted(names)) + "]\n"


def states(name: str) -> str:
    """A service's tables as Mermaid drawings."""
    return "\n".join(f"{title}:\n\n```mermaid\n{drawing}```\n" for title, drawing in DRAWINGS[name].items())


def event_table() -> str:
    """Every event with the first sentence of what it says."""
    lines = ["| event | kept in the log | what it says |", "|---|---|---|"]
    for name, model in EVENTS.items():
        about = inspect.cleandoc(model.__doc__ or "").split("\n\n")[0].replace("\n", " ")
        lines.append(f"| [{name}](schemas/{name}.json) | {'yes' if model.journalled else 'no'} | {about} |")
    return "\n".join(lines) + "\n"


def between_marks(path: Path, name: str, content: str) -> str:
    """The Markdown file with the generated part replaced.

    Raises:
        SystemExit: the file has no such marks.
    """
    text = path.read_text(encoding="utf-8")
    pattern = re.compile(rf"(<!-- generated: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    if not pattern.search(text):
        raise SystemExit(f"{path} has no marks for {name}")
    return pattern.sub(lambda match: f"{match[1]}\n{content}\n{match[2]}", text)


def files() -> dict[Path, str]:
    """Every generated file and its content."""
    from tools import reference, samples

    found = {ROOT / "events" / name: text for name, text in contract.files().items()}
    readme = ROOT / "events" / "README.md"
    found[readme] = between_marks(readme, "events", event_table())
    contributing = ROOT / "CONTRIBUTING.md"
    found[contributing] = between_marks(contributing, "samples", samples.table())
    for core in CORES:
        folder = ROOT / "services" / core.name
        found[folder / "service.toml"] = service_toml(core)
        found[folder / "README.md"] = between_marks(folder / "README.md", "states", states(core.name))
    for role in ROLES.values():
        if role.name not in {core.name for core in CORES}:
            found[ROOT / "services" / role.name / "service.toml"] = role_toml(role)
    return found | reference.pages()


def stale() -> list[Path]:
    """Files that are missing, are not what the code says, or belong to nothing any more."""
    wanted = files()
    wrong = [p for p, text in wanted.items() if not p.exists() or p.read_text(encoding="utf-8") != text]
    return wrong + [p for p in (ROOT / "events" / "schemas").glob("*.json") if p not in wanted]


def main() -> None:
    """Write, or check."""
    parser = argparse.ArgumentParser(description="Write the files that follow from the code.")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail when a file is not as it would be"
    )
    wrong = stale()
    if parser.parse_args().check:
        if wrong:
            names = "\n".join(f"  {path.relative_to(ROOT)}" for path in wrong)
            raise SystemExit(f"these files are not what the code says; run `make contract`:\n{names}")
        return
    wanted = files()
    for path in wrong:
        if path in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[path], encoding="utf-8")
        else:
            path.unlink()
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
